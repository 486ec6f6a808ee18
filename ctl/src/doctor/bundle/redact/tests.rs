use proptest::prelude::*;

use super::*;

fn redactor() -> Redactor {
    static KNOWN: LazyLock<Redactor> = LazyLock::new(|| {
        let mut names = Names::default();
        names.user("alice");
        names.user("root");
        names.home("/data/people/alice");
        names.host("node7.cluster.example.com");
        Redactor::new(names)
    });
    KNOWN.clone()
}

fn shown(text: &str) -> String {
    redactor().text(text)
}

#[test]
fn names_of_users_and_hosts_are_replaced() {
    assert_eq!(shown("Nov 21 node7 sshd: alice logged in"), "Nov 21 [host-1] sshd: [user-1] logged in");
    assert_eq!(
        shown("alice's, (ALICE) alice-train malice alice2"),
        "[user-1]'s, ([user-1]) [user-1]-train malice alice2"
    );
    assert_eq!(shown("root of NODE7.cluster.example.com:22"), "root of [host-1]:22");
    assert_eq!(
        shown("ip-10-1-2-4.cluster.example.com node7 node7.cluster.example.com"),
        "[host-1] [host-2] [host-2]"
    );
}

#[test]
fn paths_lose_the_names_in_them() {
    assert_eq!(shown("/data/people/alice/x.so:/usr/lib/y.so"), "[home-1]/x.so:/usr/lib/y.so");
    assert_eq!(shown("LD_LIBRARY_PATH=/home/bob/lib"), "LD_LIBRARY_PATH=/home/[user-1]/lib");
    assert_eq!(shown("\"/home/bob\""), "\"/home/[user-1]\"");
    assert_eq!(shown("/lib:/home/Bob:/home/bob/x"), "/lib:/home/[user-1]:/home/[user-1]/x");
    assert_eq!(shown("fe80::7/64 http://10.1.2.3:80/x"), "[ip-1]/64 http://[ip-2]:80/x");
    assert_eq!(shown("/tmp/gpushare-1000/tenant"), "/tmp/gpushare-1000/tenant");
}

#[test]
fn one_card_has_one_pseudonym_however_it_is_written() {
    let uuid = "1f0e2d3c-4b5a-6978-8796-a5b4c3d2e1f0";
    let plain = uuid.replace('-', "");
    let upper = uuid.to_uppercase();
    assert_eq!(
        shown(&format!(
            "GPU-{uuid} {plain} MIG-{upper} gpushare-GPU-{uuid}.lock, 2222{} pod{}.slice",
            &uuid[4..],
            uuid.replace('-', "_")
        )),
        "GPU-[uuid-1] [uuid-1] MIG-[uuid-1] gpushare-GPU-[uuid-1].lock, [uuid-2] pod[uuid-1].slice"
    );
}

#[test]
fn secrets_are_found_by_their_form_and_by_their_keys() {
    let token = "a5".repeat(32);
    assert_eq!(shown(&format!("token file holds {token}!")), "token file holds [secret-1]!");
    assert_eq!(shown(&format!("docker-{token}.scope")), "docker-[secret-1].scope");
    assert_eq!(
        shown("api_token = \"hunter2\"\nquantum = \"1s\"\n"),
        "api_token = [secret]\nquantum = \"1s\"\n"
    );
    assert_eq!(shown("DB_PASSWORD=hunter2"), "DB_PASSWORD=[secret]");
    assert_eq!(
        shown(r#"{"level":"INFO","fields":{"token":"hun!ter 2","n":1}}"#),
        r#"{"level":"INFO","fields":{"token":"[secret]","n":1}}"#
    );
    assert_eq!(
        shown("GET /x?a=1&api_key=hunter2&b=2, password: hunter3; token=\n"),
        "GET /x?a=1&api_key=[secret]&b=2, password: [secret]; token=\n"
    );
    assert_eq!(shown("GPUSHARE_TOKEN_FILE=/run/x"), "GPUSHARE_TOKEN_FILE=/run/x");
    assert_eq!(shown("    Serial Number   : 1650123\n"), "    Serial Number   : [serial]\n");
}

#[test]
fn values_of_secret_keys_are_found_in_any_notation() {
    for (text, expected) in [
        (r#"tokens = ["swordfish", "marlin"]"#, "tokens = [secret]"),
        ("password = [hunter2]", "password = [secret]"),
        ("token=[abc", "token=[secret]"),
        (r#"{"tokens":["swordfish"]}"#, r#"{"tokens":[secret]"#),
        (r#"token=="SWORDFISH""#, "token==[secret]"),
        (r#"token=>"SWORDFISH""#, "token=>[secret]"),
        (r#"if token != "SWORD FISH" {"#, r#"if token != "[secret]" {"#),
        ("token_file:token=hunter2", "token_file:token=[secret]"),
        ("token_file: /x, token=hunter2", "token_file: /x, token=[secret]"),
        ("  - password: hunter 2\r\nx", "  - password: [secret]\r\nx"),
        (r#"{"a":1,"token":"hun\"ter","n":1}"#, r#"{"a":1,"token":"[secret]","n":1}"#),
        (r#""{\"token\":\"hun\\\"ter\",\"n\":1}""#, r#""{\"token\":\"[secret]\",\"n\":1}""#),
        (r#"{"url":"/x?token=hunter2","n":1}"#, r#"{"url":"/x?token=[secret]","n":1}"#),
        (r#"x token="hunter 2, 3"#, r#"x token="[secret]"#),
    ] {
        assert_eq!(shown(text), expected);
    }
}

#[test]
fn addresses_are_replaced_except_those_of_the_machine_to_itself() {
    assert_eq!(shown("10.1.2.3:9402, 10.1.2.3 and 10.1.2.4."), "[ip-1]:9402, [ip-1] and [ip-2].");
    assert_eq!(shown("fe80::1 2001:db8::7, ::1"), "[ip-1] [ip-2], ::1");
    assert_eq!(shown("127.0.0.1:9402 0.0.0.0"), "127.0.0.1:9402 0.0.0.0");
    assert_eq!(shown("::ffff:10.1.2.3 64:ff9b::10.1.2.3"), "[ip-1] [ip-2]");
    assert_eq!(shown(".10.1.2.3 ...10.1.2.3... libx.so.10.1.2.3"), ".[ip-1] ...[ip-1]... libx.so.10.1.2.3");
    assert_eq!(shown(":2001:db8::7: [2001:db8::7]:443"), ":[ip-1]: [[ip-1]]:443");
    assert_eq!(shown("1:2:3:4:5:6:7:8:443 9:1:2:3:4:5:6:7::8"), "[ip-1]:443 9:1:[ip-2]");
    assert_eq!(shown("02:42:ac:11:00:02"), "[mac-1]");
    assert_eq!(shown("alice@example.com"), "[mail-1]");
}

#[test]
fn ordinary_text_stays() {
    for text in [
        "NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.",
        "driver 580.65.06 speaks CUDA 13.0 at 12:34:56 on 2026-11-21T06:00:00.123456Z",
        "libcuda.so.1 is /usr/lib/x86_64-linux-gnu/libcuda.so.580.65.06",
        "00000000:01:00.0 0xdeadbeef 8GiB 12%",
        "GLIBC_2.17 ==> [gpu0] a=b, c: d",
    ] {
        assert_eq!(shown(text), text);
    }
}

#[test]
fn the_keys_of_a_document_stay_and_its_secrets_are_replaced() {
    let mut document = serde_json::json!({"alice": ["alice", 7], "token": "x", "why": "node7 is down"});
    redactor().json(&mut document);
    let expected =
        serde_json::json!({"alice": ["[user-1]", 7], "token": "[secret]", "why": "[host-1] is down"});
    assert_eq!(document, expected);
}

#[test]
fn replaced_parts_are_counted() {
    let mut redactor = redactor();
    assert_eq!(redactor.summary(), "nothing (no private text was found)");
    redactor.text("alice alice node7 10.1.1.1 10.1.1.2\npassword = x\n");
    assert_eq!(redactor.summary(), "1 × host, 2 × ip, 1 × user, 1 × value");
}

#[test]
fn parts_are_found_whatever_stands_around_them() {
    let (token, mut redactor) = ("a5".repeat(32), redactor());
    let planted = [
        "alice",
        "node7",
        "10.1.2.3",
        "1f0e2d3c-4b5a-6978-8796-a5b4c3d2e1f0",
        "/data/people/alice",
        "2001:db8::7",
        &token,
    ];
    let around = [
        "", " ", "\"", "'", "(", "[", "{", "<", "|", ";", ",", "=", "@", "/", "-", "_", "#", "%", "\t", "→",
        "\\",
    ];
    // The characters of an IPv6 address are also what may stand around other parts.
    let borders_v6 = " \"'([{<|;#%\t→\\";
    for one in planted {
        let mut text = String::new();
        for before in around {
            for after in around {
                if one.contains("::") && !(borders_v6.contains(before) && borders_v6.contains(after)) {
                    continue;
                }
                text += &format!("{before}{one}{after}\n");
                // Beside a letter it is part of another word.
                if !before.is_empty() && !after.is_empty() {
                    text += &format!("x{before}{one}{after}x\n");
                }
            }
        }
        let redacted = redactor.text(&text);
        assert!(!redacted.contains(one), "{redacted}");
    }
}

#[test]
fn any_mixture_is_survived() {
    let pieces =
        "a,=,:,/,@,.,-,_, ,home,é,İ,٣,GPU-,token,\",[,node7,alice,10.1.2.3,::,1f0e2d3c-4b5a-6978,\n,\\";
    let pieces: Vec<&str> = pieces.split(',').collect();
    let mut redactor = redactor();
    for (one, two) in pieces.iter().flat_map(|one| pieces.iter().map(move |two| (one, two))) {
        let text = pieces.iter().map(|three| format!("{one}{two}{three}{one}"));
        redactor.text(&text.collect::<String>());
    }
    for text in ["", "\n\n", "..cluster.example.com", "token=", "token=\"é", "password : ü", "a=/home/"] {
        redactor.text(text);
    }
}

/// Pieces of a line that leave the notation of what follows them as it is.
const PIECES: &str = r#"[ ,;(){}\[\]|#%<>a-z.:=0-9"'\\-]{0,12}"#;

proptest! {
    #[test]
    fn no_planted_secret_survives(
        lines in prop::collection::vec((PIECES, 0..8_usize, 0..5_usize, 0..9_usize, PIECES), 1..4),
    ) {
        let keys = ["token", "API_TOKEN", "tokens", "db.password", "client-secret", "apikey", "Private_key",
            "token_file: token"];
        let gaps = ["=", ": ", " = ", "==", "=>"];
        let values = ["SWORD", "[SWORD", "\"SWORD FISH\"", "'SWORD, FISH'", "\"SWORD",
            "[\"SWORD\", \"FISH\"]", "{a = \"SWORD\"}", "(SWORD)", "\"\\\"SWORD\\\"FISH\""];
        let mut text = String::new();
        for (before, key, gap, value, after) in lines {
            text += &format!("{before} {}{}{} {after}\n", keys[key], gaps[gap], values[value]);
        }
        let redacted = shown(&text);
        prop_assert!(!redacted.contains("SWORD") && !redacted.contains("FISH"), "{text}\n{redacted}");
    }

    #[test]
    fn no_planted_part_survives(
        lines in prop::collection::vec((r"[ ,;(){}\[\]|#%<>'\\]{1,3}", 0..9_usize, PIECES), 1..8),
    ) {
        let parts = ["alice", "node7", "10.1.2.3", "::ffff:10.1.2.3", "2001:db8::7", ".10.1.2.3", "02:42:ac:11:00:02",
            "1f0e2d3c-4b5a-6978-8796-a5b4c3d2e1f0", "/data/people/alice"];
        let mut text = String::new();
        for (around, part, after) in lines {
            text += &format!("{around}{}{around}{after}\n", parts[part]);
        }
        let redacted = shown(&text);
        for part in parts {
            prop_assert!(!redacted.contains(part), "{text}\n{redacted}");
        }
    }
}
