//! Checks of each card: the abilities, and the memory backend that results.

use gpushare_probe::{CudaCard, NvmlCard};
use gpushare_proto::{Abilities, Backend, Bytes};

use super::super::facts::Facts;
use super::super::model::Outcome;

/// Returns one check result per card that the CUDA driver shows, or the reason for no card.
fn each(facts: &Facts, judge: impl Fn(&CudaCard) -> Outcome) -> Vec<Outcome> {
    match &facts.cuda.facts.cards[..] {
        [] => vec![Outcome::skipped("the driver shows no card")],
        cards => cards
            .iter()
            .enumerate()
            .map(|(index, card)| judge(card).of(format!("cuda{index}")))
            .collect(),
    }
}

/// Returns one check result per card whose `value` NVML reports, or the reason for no value.
fn told<T: Copy>(
    facts: &Facts,
    value: impl Fn(&NvmlCard) -> Option<T>,
    judge: impl Fn(&NvmlCard, T) -> Outcome,
) -> Vec<Outcome> {
    let outcomes: Vec<Outcome> = facts
        .nvml
        .facts
        .cards
        .iter()
        .enumerate()
        .filter_map(|(index, card)| Some(judge(card, value(card)?).of(format!("nvml{index}"))))
        .collect();
    match outcomes.is_empty() {
        true => vec![Outcome::skipped("NVML does not report it")],
        false => outcomes,
    }
}

pub(super) fn seen(facts: &Facts) -> Vec<Outcome> {
    let mut outcomes = each(facts, |card| {
        let name = card.name.as_deref().unwrap_or("a card without a name");
        let memory = card.total.map_or(String::new(), |total| format!(", {}", Bytes(total)));
        let uuid = card.uuid.map_or(String::new(), |uuid| format!(", {uuid}"));
        Outcome::ok(format!("{name}{memory}{uuid}"))
    });
    let (cuda, nvml) = (facts.cuda.facts.cards.len(), facts.nvml.facts.cards.len());
    if (1..nvml).contains(&cuda) && facts.var("CUDA_VISIBLE_DEVICES").is_none() {
        outcomes.push(Outcome::warning(
            format!("the driver shows {cuda} of the {nvml} cards that NVML shows"),
            "look for lost cards in driver.nvml, and for cards divided into instances in cards.mig",
        ));
    }
    outcomes
}

pub(super) fn managed(facts: &Facts) -> Vec<Outcome> {
    each(facts, |card| {
        match (card.managed, card.concurrent_managed) {
        (Some(1), Some(1)) => Outcome::ok("concurrent managed access"),
        (Some(1), _) => Outcome::warning(
            "managed memory, but not concurrently: it cannot exceed the card",
            "start programs with `gpushare-ctl run --backend native`; they share the card while their memory fits",
        )
        .backend(Backend::Native, "managed memory does not fault here (WSL, some vGPUs, cards before Pascal)"),
        _ => Outcome::warning(
            "no managed memory",
            "start programs with `gpushare-ctl run --backend native`; they share the card while their memory fits",
        )
        .backend(Backend::Native, "the driver has no managed memory on this card"),
    }
    })
}

pub(super) fn vmm(facts: &Facts) -> Vec<Outcome> {
    each(facts, |card| match card.vmm {
        Some(1) => Outcome::ok("memory is mapped by handle"),
        _ => Outcome::warning(
            "memory cannot be mapped by handle: PyTorch's expandable segments and the remap backend do not work",
            "upgrade the driver; a vGPU needs a profile with unified memory",
        ),
    })
}

pub(super) fn registration(facts: &Facts) -> Vec<Outcome> {
    each(facts, |card| match card.host_register {
        Some(0) => Outcome::ok("host memory cannot be registered")
            .hint("remapped memory moves into registered memory, so memory is managed on this card"),
        _ => Outcome::ok("host memory can be registered"),
    })
}

pub(super) fn posix_fd(facts: &Facts) -> Vec<Outcome> {
    each(facts, |card| match card.posix_fd {
        Some(1) => Outcome::ok("handles pass as file descriptors"),
        _ => Outcome::ok(
            "handles do not pass as file descriptors: memory by handle cannot be shared between processes",
        ),
    })
}

pub(super) fn rdma(facts: &Facts) -> Vec<Outcome> {
    each(facts, |card| match (card.rdma, card.rdma_handles) {
        (Some(1), Some(1)) => Outcome::ok("GPUDirect RDMA, also of handles"),
        (Some(1), _) => Outcome::ok("GPUDirect RDMA, not of handles"),
        _ => Outcome::ok("no GPUDirect RDMA"),
    })
}

pub(super) fn host_numa(facts: &Facts) -> Vec<Outcome> {
    each(facts, |card| match card.host_numa {
        Some(1) => Outcome::ok("handles of the host's memory"),
        _ => Outcome::ok(
            "no handles of the host's memory: remapped memory cannot exceed what the card has for it",
        )
        .hint("driver 550 or newer may have them"),
    })
}

pub(super) fn backend(facts: &Facts) -> Vec<Outcome> {
    let confidential = matches!(facts.nvml.facts.confidential, Some(1..));
    each(facts, |card| {
        let can = Abilities {
            concurrent_managed: card.managed == Some(1) && card.concurrent_managed == Some(1),
            handles: card.vmm == Some(1),
            registration: card.host_register != Some(0),
        };
        let chosen = Backend::of_card(can);
        match chosen {
            Backend::Remap => Outcome::ok("remap: memory moves at the speed of the bus")
                .backend(chosen, "the card has handles, and host memory can be registered"),
            Backend::Managed => {
                let slow = match confidential {
                    true => ", slowly: confidential computing encrypts each page",
                    false => "",
                };
                Outcome::ok(format!("managed{slow}"))
                    .backend(chosen, "concurrent managed access is supported")
            }
            Backend::Native => Outcome::warning(
                "native: programs share the card only while their memory fits",
                "start programs with `gpushare-ctl run --backend native`; see cards.managed for the cause",
            )
            .backend(chosen, "there is no concurrent managed access"),
        }
    })
}

pub(super) fn mig(facts: &Facts) -> Vec<Outcome> {
    told(
        facts,
        |card| card.mig,
        |card, mig| match (mig, card.mig_pending.unwrap_or(mig)) {
            (now, pending) if now != pending => Outcome::warning(
                format!("MIG is {} and will be {} after a reset", on(now), on(pending)),
                "reset the card while no program uses it: `sudo nvidia-smi --gpu-reset`",
            ),
            (0, _) => Outcome::ok("MIG is off"),
            _ => Outcome::ok("MIG is on: each instance is a card of its own"),
        },
    )
}

fn on(mode: i32) -> &'static str {
    if mode == 0 { "off" } else { "on" }
}

pub(super) fn vgpu(facts: &Facts) -> Vec<Outcome> {
    told(
        facts,
        |card| card.virtualization,
        |_, mode| match mode {
            0 => Outcome::ok("a card of this machine"),
            1 => Outcome::ok("passed through to this virtual machine: as a card of its own"),
            2 => Outcome::warning(
                "a vGPU: its host takes turns between virtual machines, and ours come on top",
                "check cards.managed: only profiles with unified memory have managed memory",
            ),
            _ => Outcome::warning(
                "a host of vGPUs: virtual machines take memory and time that gpushare does not see",
                "give gpushare a card that serves no vGPUs",
            ),
        },
    )
}

pub(super) fn compute_mode(facts: &Facts) -> Vec<Outcome> {
    let hint = "run `sudo nvidia-smi -c DEFAULT`";
    told(
        facts,
        |card| card.compute_mode,
        |_, mode| match mode {
            0 => Outcome::ok("any number of processes"),
            2 => Outcome::error("prohibited: no process may use the card", hint),
            _ => Outcome::error("exclusive: only one process may use the card, so it cannot be shared", hint),
        },
    )
}

pub(super) fn persistence(facts: &Facts) -> Vec<Outcome> {
    told(
        facts,
        |card| card.persistence,
        |_, mode| match mode {
            0 => Outcome::ok("off: the first program on an idle card waits for the driver to start")
                .hint("`sudo nvidia-smi -pm 1`, or the service nvidia-persistenced, spares that"),
            _ => Outcome::ok("on"),
        },
    )
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::super::model::Severity::{Error, Ok, Skipped, Warning};
    use super::*;

    fn with(card: CudaCard) -> Facts {
        let mut facts = Facts::bare(Path::new("/nonexistent"));
        facts.cuda.facts.cards = vec![card];
        facts
    }

    fn with_nvml(card: NvmlCard) -> Facts {
        let mut facts = Facts::bare(Path::new("/nonexistent"));
        facts.nvml.facts.cards = vec![card];
        facts
    }

    fn h100() -> CudaCard {
        CudaCard {
            name: Some("NVIDIA H100".into()),
            uuid: None,
            total: Some(80 << 30),
            managed: Some(1),
            concurrent_managed: Some(1),
            vmm: Some(1),
            posix_fd: Some(1),
            rdma: Some(1),
            rdma_handles: Some(1),
            host_numa: Some(1),
            host_register: Some(1),
        }
    }

    #[test]
    fn memory_of_a_whole_card_is_remapped() {
        let facts = with(h100());
        let [outcome] = &backend(&facts)[..] else { panic!() };
        assert_eq!(outcome.severity, Ok);
        assert_eq!(outcome.finding, "remap: memory moves at the speed of the bus");
        assert_eq!(outcome.backend.as_ref().unwrap().backend, Backend::Remap);
        for check in [seen, managed, vmm, registration, posix_fd, rdma, host_numa] {
            assert_eq!(check(&facts)[0].severity, Ok);
        }
        assert_eq!(seen(&facts)[0].finding, "NVIDIA H100, 80GiB");
    }

    #[test]
    fn without_handles_or_registered_memory_it_is_managed() {
        for card in [CudaCard { vmm: Some(0), ..h100() }, CudaCard { host_register: Some(0), ..h100() }] {
            let [outcome] = &backend(&with(card))[..] else { panic!() };
            assert_eq!(outcome.backend.as_ref().unwrap().backend, Backend::Managed);
        }
        let unregistered = &registration(&with(CudaCard { host_register: Some(0), ..h100() }))[0];
        assert!(unregistered.hint.as_ref().unwrap().contains("memory is managed"));
    }

    #[test]
    fn without_concurrent_access_it_is_native() {
        for concurrent_managed in [Some(0), None] {
            let facts = with(CudaCard { concurrent_managed, ..h100() });
            for check in [managed, backend] {
                let [outcome] = &check(&facts)[..] else { panic!() };
                assert_eq!(outcome.severity, Warning);
                assert_eq!(outcome.backend.as_ref().unwrap().backend, Backend::Native);
                assert!(outcome.hint.as_ref().unwrap().contains("--backend native"));
            }
        }
    }

    #[test]
    fn what_a_card_lacks_is_said() {
        let facts = with(CudaCard::default());
        assert_eq!(vmm(&facts)[0].severity, Warning);
        assert_eq!(managed(&facts)[0].finding, "no managed memory");
        for check in [posix_fd, rdma, host_numa] {
            let [outcome] = &check(&facts)[..] else { panic!() };
            assert!(outcome.severity == Ok && outcome.finding.contains("no"), "{outcome:?}");
        }
    }

    #[test]
    fn confidential_computing_makes_managed_memory_slow() {
        let mut facts = with(CudaCard { host_register: Some(0), ..h100() });
        facts.nvml.facts.confidential = Some(1);
        assert!(backend(&facts)[0].finding.starts_with("managed, slowly: "));
    }

    #[test]
    fn an_exclusive_card_cannot_be_shared() {
        let mode = |mode| {
            let card = NvmlCard { compute_mode: Some(mode), ..NvmlCard::default() };
            compute_mode(&with_nvml(card))[0].severity
        };
        assert_eq!([mode(0), mode(2), mode(3)], [Ok, Error, Error]);
    }

    #[test]
    fn mig_vgpu_and_persistence_are_told_as_they_are() {
        let mig_of = |now, pending| {
            let card = NvmlCard { mig: Some(now), mig_pending: Some(pending), ..NvmlCard::default() };
            mig(&with_nvml(card))[0].severity
        };
        assert_eq!([mig_of(0, 0), mig_of(1, 1), mig_of(0, 1)], [Ok, Ok, Warning]);
        let vgpu_of = |mode| {
            let card = NvmlCard { virtualization: Some(mode), ..NvmlCard::default() };
            vgpu(&with_nvml(card))[0].severity
        };
        assert_eq!([vgpu_of(0), vgpu_of(1), vgpu_of(2), vgpu_of(3)], [Ok, Ok, Warning, Warning]);
        let idle = persistence(&with_nvml(NvmlCard { persistence: Some(0), ..NvmlCard::default() }));
        assert!(idle[0].severity == Ok && idle[0].hint.is_some());
        assert_eq!(mig(&with_nvml(NvmlCard::default()))[0].severity, Skipped);
    }

    #[test]
    fn cards_that_only_nvml_knows_are_missed_unless_they_are_hidden() {
        let mut facts = with(h100());
        facts.nvml.facts.cards = vec![NvmlCard::default(); 2];
        assert_eq!(seen(&facts).last().unwrap().severity, Warning);
        facts.set("CUDA_VISIBLE_DEVICES", "0");
        assert_eq!(seen(&facts).len(), 1);
    }
}
