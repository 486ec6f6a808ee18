//! The `nvml-wrapper` crate as it is published: prints what NVML says of every card.

use nvml_wrapper::Nvml;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let nvml = Nvml::builder().lib_path("libnvidia-ml.so.1".as_ref()).init()?;
    println!("driver {}", nvml.sys_driver_version()?);
    for index in 0..nvml.device_count()? {
        let card = nvml.device_by_index(index)?;
        let memory = card.memory_info()?;
        println!("{} {} {}", card.name()?, card.uuid()?, memory.total);
        println!("{} used by {} processes", memory.used, card.running_compute_processes()?.len());
    }
    Ok(())
}
