//! Programs of others, each natively and with gpushare, on the simulated card: what they compute and what
//! they are told must be the same. Those in Python are in `cargo xtask ci-extra`.

use gpushare_proto::Bytes;
use gpushare_tests::{Program, Sharing, World, foreign};

#[test]
fn cudarc_computes_the_same_and_sees_its_limit_as_the_card() -> anyhow::Result<()> {
    let (world, daemon) =
        World::of(Bytes::mib(64))?.with_daemon(&["--mode", "serialized", "--quantum", "20ms"])?;
    let cudarc = foreign::example("client_cudarc")?;
    let said = |sharing: &Sharing| foreign::run(&world, sharing, &cudarc, &[]);
    let native = said(&Sharing::Native)?;
    assert_eq!(
        native,
        format!("262144 of 262144 words are 42\n{} bytes on Simulated GPU\n", Bytes::mib(64).0)
    );
    assert_eq!(said(&Sharing::Preload)?, native);
    let limited = said(&Sharing::limited("cudarc", Bytes::mib(16)))?;
    assert_eq!(limited, native.replace(&Bytes::mib(64).0.to_string(), &Bytes::mib(16).0.to_string()));
    daemon.until("nothing is left of it", |status| status.sessions.is_empty())?;
    Ok(())
}

#[test]
fn nvml_wrapper_is_told_of_its_session_inside_one_and_of_the_card_outside() -> anyhow::Result<()> {
    let (world, _daemon) = World::of(Bytes::mib(64))?.with_daemon(&[])?;
    let nvml = foreign::example("client_nvml_wrapper")?;
    // Somebody for NVML to report.
    let mut holder = Program::hold(&world, &Sharing::session("holder"), "holder")?;
    holder.must("alloc x 8MiB; fill x 1; sync")?;
    let said = |sharing: &Sharing| foreign::run(&world, sharing, &nvml, &[]);
    let native = said(&Sharing::Native)?;
    assert!(native.starts_with("driver 580."), "{native}");
    assert!(native.contains(&format!(" {}\n", Bytes::mib(64).0)), "{native}");
    assert!(native.ends_with("used by 1 processes\n"), "{native}");
    assert_eq!(said(&Sharing::Preload)?, native);
    let (card, others) = (Bytes::mib(64).0.to_string(), "used by 1 processes");
    let limit = Bytes::mib(16).0.to_string();
    let (_, used) = native.trim_end().rsplit_once('\n').unwrap_or_default();
    assert!(used.ends_with(others), "{native}");
    let own = native.replace(&card, &limit).replace(used, "0 used by 0 processes");
    assert_eq!(said(&Sharing::limited("nvml", Bytes::mib(16)))?, own);
    Ok(())
}
