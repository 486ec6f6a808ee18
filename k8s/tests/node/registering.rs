//! Registration: with the first kubelet, with the next one, and with none.

use std::time::{Duration, Instant};

use gpushare_k8s::RESOURCE;
use gpushare_tests::patience;
use rustix::process::Signal;

use crate::node::{Node, of_another_processor, watch};

#[tokio::test]
async fn a_recreated_kubelet_socket_leads_to_a_second_registration_within_two_seconds() -> anyhow::Result<()>
{
    let node = Node::new()?;
    let mut kubelet = node.kubelet()?;
    let _plugin = node.plugin(&["--shares", "3"])?;
    let request = kubelet.registered().await?;
    assert_eq!((request.version.as_str(), request.resource_name.as_str()), ("v1beta1", RESOURCE));
    assert!(
        request
            .options
            .is_some_and(|options| options.get_preferred_allocation_available)
    );
    let mut took = Vec::new();
    for _ in 0..3 {
        drop(kubelet);
        // It removes the plugin's socket too.
        let restarted = Instant::now();
        kubelet = node.kubelet()?;
        let request = kubelet.registered().await?;
        took.push(restarted.elapsed());
        let mut plugin = kubelet.connect(&request.endpoint).await?;
        assert_eq!(watch(&mut plugin).await?.0.len(), 6);
    }
    // The machine may be busy, but not each time.
    assert!(took.iter().min().is_some_and(|least| *least < Duration::from_secs(2)), "{took:?}");
    Ok(())
}

#[tokio::test]
async fn a_missing_kubelet_is_said_once_and_waited_for() -> anyhow::Result<()> {
    let node = Node::new()?;
    let mut plugin = node.plugin(&[])?;
    let complaint = "no kubelet listens at";
    let said = || plugin.stderr().matches(complaint).count();
    patience::until("the complaint", || Ok((said() > 0).then_some(())))?;
    // Each new socket of the plugin is a look before which, and after which, no kubelet was there.
    let socket = node.path("plugins/gpushare.sock");
    for _ in 0..3 {
        std::fs::remove_file(&socket)?;
        patience::until("the socket again", || Ok(socket.exists().then_some(())))?;
    }
    let mut kubelet = node.kubelet()?;
    kubelet.registered().await?;
    assert_eq!(said(), 1, "{}", plugin.stderr());
    assert!(plugin.stderr().contains("--plugins-dir"), "{}", plugin.stderr());

    plugin.signal(Signal::TERM)?;
    plugin.succeed()?;
    let left: Vec<_> = std::fs::read_dir(node.path("plugins"))?
        .map(|file| file.unwrap().file_name())
        .collect();
    assert_eq!(left, ["kubelet.sock"]);
    Ok(())
}

#[test]
fn a_node_that_lacks_a_file_or_a_card_says_what_to_do() -> anyhow::Result<()> {
    let node = Node::new()?;
    let foreign = node.path("foreign-libgpushare.so");
    std::fs::write(&foreign, of_another_processor(node.world.path(gpushare_tests::Part::Library))?)?;
    let foreign = foreign.to_string_lossy();
    for (flags, wanted) in [
        (&["--library", "/nowhere/libgpushare.so"][..], "/nowhere/libgpushare.so, which containers need"),
        (&["--library", &*foreign][..], "is no library for this node's processor"),
        (&["--host-root", "/nowhere"][..], "nvidia-modprobe"),
    ] {
        let mut command = node.world.program(std::path::Path::new(env!("CARGO_BIN_EXE_gpushare-k8s")));
        command.arg("device-plugin").arg("--files").arg(node.path("files")).args(flags);
        if flags[0] != "--library" {
            command.arg("--library").arg(node.world.path(gpushare_tests::Part::Library));
            command.arg("--ctl").arg(node.world.path(gpushare_tests::Part::Ctl));
        }
        let error = gpushare_tests::output_of(command).unwrap_err().to_string();
        assert!(error.contains(wanted), "{error}");
    }
    Ok(())
}
