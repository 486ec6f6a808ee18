//! Tests of the decision about annotations and claims.

use gpushare_proto::text::is_printable;

use super::super::reading::kept;
use super::*;

const USUAL: Limits = Limits {
    memory: None,
    memory_by_card: Vec::new(),
    compute: None,
    compute_by_card: Vec::new(),
    weight: 100,
    priority: Priority::Normal,
    freeze_after: FreezeAfter::Usual,
};

fn judged(written: &[(&str, &str)], most: &Most, had: Option<&Limits>) -> (Limits, Vec<String>) {
    let annotations = written
        .iter()
        .map(|&(key, value)| (format!("gpushare.dev/{key}"), value.to_owned()));
    claimed(&annotations.collect(), &Asked::default(), most, had)
}

fn claimed(
    annotations: &BTreeMap<String, String>,
    claim: &Asked,
    most: &Most,
    had: Option<&Limits>,
) -> (Limits, Vec<String>) {
    let (limits, problems) = judge(annotations, claim, most, had, &[Bytes::gib(80)]);
    (limits, problems.iter().map(ToString::to_string).collect())
}

fn wide() -> Most {
    Most { weight: 10_000, priority: Priority::High, ..Most::default() }
}

const fn gib(n: u64) -> Option<Amount> {
    Some(Amount::Bytes(Bytes::gib(n)))
}

#[test]
fn a_share_without_annotation_has_no_memory_cap_and_weight_100() {
    assert_eq!(judged(&[], &Most::default(), None), (USUAL, vec![]));
}

#[test]
fn each_annotation_sets_its_limit() {
    let limits = [("memory", "8Gi"), ("compute", "25%"), ("weight", "400"), ("priority", "high")];
    let all = [&limits[..], &[("freeze-after", "off")]].concat();
    let wanted = Limits {
        memory: gib(8),
        compute: Some(Percent(2500)),
        weight: 400,
        priority: Priority::High,
        freeze_after: FreezeAfter::Never,
        ..USUAL
    };
    assert_eq!(judged(&all, &wide(), None), (wanted, vec![]));
    for (text, memory) in [("8GiB", gib(8)), ("50%", Some(Amount::Share(Percent(5000))))] {
        assert_eq!(judged(&[("memory", text)], &wide(), None).0.memory, memory);
    }
}

#[test]
fn an_annotation_that_is_no_size_keeps_the_limit_that_the_pod_has() {
    let had = Limits { memory: gib(4), ..USUAL };
    let (limits, problems) = judged(&[("memory", "lots")], &wide(), Some(&had));
    assert_eq!(limits, had);
    assert_eq!(
        problems,
        ["gpushare.dev/memory: `lots` is no size; write it like 8GiB or 50%. The pod keeps 4GiB",]
    );
    let (limits, problems) = judged(&[("memory", "1KiB")], &wide(), None);
    assert_eq!(limits, USUAL);
    assert!(problems[0].ends_with("write 1MiB or more. The pod keeps no limit"), "{problems:?}");
}

#[test]
fn a_limit_above_100_percent_is_refused() {
    for key in ["memory", "compute"] {
        let (limits, problems) = judged(&[(key, "150%")], &wide(), None);
        assert_eq!(limits, USUAL);
        assert_eq!(
            problems,
            [format!("gpushare.dev/{key}: `150%` is above 100%; write at most 100%. The pod keeps no limit")]
        );
    }
}

#[test]
fn what_is_no_share_weight_or_priority_says_what_would_be_one() {
    for (key, text, wanted) in [
        ("compute", "8GiB", "`8GiB` is no share; write it like 25%"),
        ("compute", "0%", "write more than 0%"),
        ("weight", "heavy", "`heavy` is no weight; write a number like 100"),
        ("weight", "0", "10000"),
        ("priority", "urgent", "write low, normal or high"),
    ] {
        let (limits, problems) = judged(&[(key, text)], &wide(), None);
        assert_eq!(limits, USUAL);
        assert!(problems.len() == 1 && problems[0].contains(wanted), "{problems:?}");
    }
}

#[test]
fn values_above_the_maxima_become_the_maxima() {
    let most = Most { memory: gib(8), compute: Some(Percent(5000)), ..Most::default() };
    let all = [("memory", "40GiB"), ("compute", "75%"), ("weight", "200"), ("priority", "high")];
    let (limits, problems) = judged(&all, &most, None);
    let wanted = Limits { memory: gib(8), compute: Some(Percent(5000)), ..USUAL };
    assert_eq!(limits, wanted);
    assert_eq!(problems.len(), 4);
    assert_eq!(
        problems[2],
        "gpushare.dev/weight: 200 is above 100, the most for pods of this namespace. The pod gets 100; ask the \
         administrator of the node for more"
    );
    // Without annotations the maxima are silent.
    assert_eq!(judged(&[], &most, None), (wanted, vec![]));
    let low = Most { weight: 10, priority: Priority::Low, ..most };
    let (limits, problems) = judged(&[], &low, None);
    assert_eq!((limits.weight, limits.priority, problems), (10, Priority::Low, vec![]));
}

#[test]
fn a_kept_limit_is_within_the_maxima_too() {
    let most = Most { memory: gib(2), ..wide() };
    let had = Limits { memory: gib(4), ..USUAL };
    let (limits, problems) = judged(&[("memory", "lots")], &most, Some(&had));
    assert_eq!((limits.memory, problems.len()), (gib(2), 1));
}

#[test]
fn a_share_of_memory_is_compared_by_the_size_of_the_card() {
    let most = Most { memory: gib(8), ..Most::default() };
    let tenth = Amount::Share(Percent(1000));
    assert_eq!(judged(&[("memory", "10%")], &most, None).0.memory, Some(tenth));
    assert_eq!(judged(&[("memory", "11%")], &most, None).0.memory, gib(8));
}

fn on_cards(text: &str, most: &Most, had: Option<&Limits>, cards: &[u64]) -> Option<Amount> {
    let cards: Vec<Bytes> = cards.iter().map(|&size| Bytes::gib(size)).collect();
    let annotations = BTreeMap::from([(MEMORY.to_owned(), text.to_owned())]);
    judge(&annotations, &Asked::default(), most, had, &cards).0.memory
}

#[test]
fn a_limit_is_within_the_maximum_on_each_of_several_cards() {
    let (bytes, half) = (gib(40), Some(Amount::Share(Percent(5000))));
    let all = Some(Amount::Share(Percent(10_000)));
    let within =
        |text, most, cards: &[u64]| on_cards(text, &Most { memory: most, ..Most::default() }, None, cards);
    assert_eq!(within("100%", bytes, &[24]), all);
    assert_eq!(within("100%", bytes, &[24, 80]), bytes, "80GiB of the second card would be too much");
    assert_eq!(within("100%", bytes, &[80, 24]), bytes);
    assert_eq!(within("30GiB", half, &[80]), gib(30));
    assert_eq!(within("30GiB", half, &[80, 24]), half, "30GiB of the second card would be too much");
}

#[test]
fn a_limit_that_cannot_be_compared_stays_and_a_new_one_is_the_maximum() {
    let most = Most { memory: gib(8), ..Most::default() };
    let tenth = Some(Amount::Share(Percent(1000)));
    let had = Limits { memory: tenth, ..USUAL };
    assert_eq!(on_cards("10%", &most, Some(&had), &[]), tenth);
    assert_eq!(on_cards("90%", &most, Some(&had), &[]), tenth, "nobody knows what 90% would be");
    assert_eq!(on_cards("10%", &most, None, &[]), gib(8));
    assert_eq!(on_cards("10%", &most, Some(&USUAL), &[]), gib(8), "a session without a limit");
    assert_eq!(on_cards("4GiB", &most, Some(&had), &[]), gib(4));
}

#[test]
fn the_limit_of_a_claim_stays_while_its_card_is_not_known() {
    let claim = Asked { memory: gib(8), ..Asked::default() };
    let most = Most { memory: Some(Amount::Share(Percent(5000))), ..Most::default() };
    let had = Limits { memory: gib(8), ..USUAL };
    let none = BTreeMap::new();
    assert_eq!(judge(&none, &claim, &most, Some(&had), &[]), (had.clone(), vec![]));
    let (limits, problems) = judge(&none, &claim, &most, None, &[]);
    assert_eq!((limits.memory, problems.len()), (most.memory, 1));
}

#[test]
fn other_annotations_and_long_texts_are_not_kept() {
    let long = format!("8GiB{}", " ".repeat(200_000));
    let all = [(MEMORY, long.as_str()), (WEIGHT, "50"), ("example.org/notes", &long)];
    let kept = kept(all.map(|(key, text)| (key.to_owned(), text.to_owned())).into());
    assert_eq!(kept.keys().collect::<Vec<_>>(), [MEMORY, WEIGHT]);
    assert!(kept[WEIGHT] == "50" && kept[MEMORY].len() < 200);
    let (limits, problems) = judge(&kept, &Asked::default(), &Most::default(), None, &[]);
    assert_eq!((limits.memory, limits.weight, problems.len()), (None, 50, 1));
}

#[test]
fn a_message_repeats_the_beginning_of_an_annotation_without_commands() {
    let long = format!("\u{1b}[2J\n{}\u{202e}", "9".repeat(100_000));
    for (key, wanted) in [
        ("memory", "is no size"),
        ("compute", "is no share"),
        ("weight", "is no weight"),
        ("priority", "is no priority"),
    ] {
        let (_, problems) = judged(&[(key, &long)], &Most::default(), None);
        assert!(problems[0].contains(wanted) && problems[0].contains("`?[2J?999"), "{problems:?}");
        assert!(problems[0].len() < 300 && problems[0].chars().all(is_printable), "{problems:?}");
    }
    let (_, problems) = judged(&[("compute", &format!("{}%", "9".repeat(1000)))], &wide(), None);
    assert!(problems[0].contains("…` is above 100%") && problems[0].len() < 300, "{problems:?}");
}

#[test]
fn the_terms_of_a_claim_stand_in_for_absent_annotations() {
    let claim = Asked { memory: gib(8), weight: Some(300), ..Asked::default() };
    let wanted = Limits { memory: gib(8), weight: 300, ..USUAL };
    assert_eq!(claimed(&BTreeMap::new(), &claim, &wide(), None), (wanted, vec![]));
    let own = [(WEIGHT.to_owned(), "50".to_owned()), (MEMORY.to_owned(), "4GiB".to_owned())].into();
    let wanted = Limits { memory: gib(4), weight: 50, ..USUAL };
    assert_eq!(claimed(&own, &claim, &wide(), None), (wanted, vec![]));
}

#[test]
fn a_claim_is_within_the_maxima_and_an_annotation_within_the_claims_memory() {
    let claim = Asked { memory: gib(8), weight: Some(300), ..Asked::default() };
    let most = Most { memory: gib(6), ..Most::default() };
    let (limits, problems) = claimed(&BTreeMap::new(), &claim, &most, None);
    assert_eq!((limits.memory, limits.weight), (gib(6), 100));
    assert!(
        problems[0].starts_with("memory of the pod's claim: 8GiB is above 6GiB, the most"),
        "{problems:?}"
    );
    assert!(problems[1].starts_with("weight of the pod's claim: 300 is above 100, the most"), "{problems:?}");
    let more = [(MEMORY.to_owned(), "16GiB".to_owned())].into();
    let (limits, problems) = claimed(&more, &claim, &wide(), None);
    assert_eq!(limits.memory, gib(8));
    let wanted =
        "gpushare.dev/memory: 16GiB is above 8GiB, the memory of the pod's claim. The pod gets 8GiB;";
    assert!(problems.len() == 1 && problems[0].starts_with(wanted), "{problems:?}");
}
