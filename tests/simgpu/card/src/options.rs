//! Command line of the card.

use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;
use simgpu_card::constants::{Constants, HandleRates, Rate};
use simgpu_card::wire::{Divided, GpuDescription};

/// A simulated GPU. Clients find it by the environment variable SIMGPU_SOCKET.
#[derive(Debug, Parser)]
pub(crate) struct Options {
    /// Where to listen; the file must not exist and is removed at the end
    #[arg(long, env = "SIMGPU_SOCKET")]
    pub(crate) socket: PathBuf,
    /// How many GPUs
    #[arg(long, default_value_t = 1)]
    gpus: u32,
    /// Memory of each GPU, like 256MiB; several times for one after the other, the last one for all that
    /// follow
    #[arg(long, value_parser = bytes)]
    memory: Vec<u64>,
    /// Divides a GPU into MIG instances with this memory, like 0=32MiB,16MiB
    #[arg(long = "mig", value_parser = division)]
    divided: Vec<(u32, Vec<u64>)>,
    /// Memory of one context
    #[arg(long, value_parser = bytes)]
    context_memory: Option<u64>,
    /// UUID of a GPU as 32 hexadecimal digits, dashes and GPU- allowed; once for each GPU
    #[arg(long = "uuid", value_parser = uuid)]
    uuids: Vec<[u8; 16]>,
    /// Bytes per second of managed pages that fault in
    #[arg(long, value_parser = bytes)]
    fault_rate: Option<u64>,
    /// Bytes per second of managed pages that are evicted
    #[arg(long, value_parser = bytes)]
    evict_rate: Option<u64>,
    /// Bytes per second of managed pages prefetched to the GPU
    #[arg(long, value_parser = bytes)]
    prefetch_in_rate: Option<u64>,
    /// Bytes per second of managed pages prefetched to the host
    #[arg(long, value_parser = bytes)]
    prefetch_out_rate: Option<u64>,
    /// Bytes per second that a kernel reads and writes
    #[arg(long, value_parser = bytes)]
    kernel_rate: Option<u64>,
    /// Bytes per second of pinned memory copied to the GPU
    #[arg(long, value_parser = bytes)]
    pinned_in_rate: Option<u64>,
    /// Bytes per second of pinned memory copied to the host
    #[arg(long, value_parser = bytes)]
    pinned_out_rate: Option<u64>,
    /// Bytes per second of pinned memory copied both ways at once, added up
    #[arg(long, value_parser = bytes)]
    pinned_both_rate: Option<u64>,
    /// Bytes per second of host memory that is registered
    #[arg(long, value_parser = bytes)]
    register_rate: Option<u64>,
    /// Bytes per second of host memory that nobody has touched before it is registered, in addition
    #[arg(long, value_parser = bytes)]
    touch_rate: Option<u64>,
    /// Bytes per second of host memory that is unregistered
    #[arg(long, value_parser = bytes)]
    unregister_rate: Option<u64>,
    /// Host memory that can be pinned, registered and created in all, like 64MiB; no limit if not given
    #[arg(long, value_parser = bytes)]
    host_memory: Option<u64>,
    #[command(flatten)]
    handles: HandleOptions,
    /// Length of a time slice in microseconds
    #[arg(long)]
    slice_us: Option<u64>,
    /// Time in microseconds for which nobody computes when a process is stopped for another one
    #[arg(long)]
    slice_change_us: Option<u64>,
    /// Time to create a context in microseconds
    #[arg(long)]
    context_create_us: Option<u64>,
    /// Time until a dead process' memory is back in microseconds
    #[arg(long)]
    death_release_us: Option<u64>,
    /// The GPUs say that host and GPU cannot use managed memory at the same time, as virtual ones do
    #[arg(long)]
    no_concurrent_managed: bool,
    /// The GPUs cannot register host memory that they only read
    #[arg(long)]
    no_read_only_registration: bool,
    /// NUMA node of the host that is next to the GPUs, and the only one with memory
    #[arg(long, default_value_t = 0)]
    host_node: u32,
    /// NVML says that the GPUs are not in persistence mode
    #[arg(long)]
    no_persistence: bool,
    /// The GPUs refuse to create memory by handle that can be exported, although they say that they can
    #[arg(long)]
    refuse_exportable: bool,
    /// End when the process that started this one ends
    #[arg(long)]
    pub(crate) die_with_parent: bool,
    /// Print the statistics as one line of JSON at the end
    #[arg(long)]
    pub(crate) json_stats: bool,
}

impl Options {
    /// Numbers of the card.
    pub(crate) fn constants(&self) -> Constants {
        let normal = Constants::default();
        let time = |given: Option<u64>, normal| given.map_or(normal, Duration::from_micros);
        Constants {
            memory: self.memory.first().copied().unwrap_or(normal.memory),
            context_memory: self.context_memory.unwrap_or(normal.context_memory),
            fault_in: rate(self.fault_rate, normal.fault_in),
            evict_out: rate(self.evict_rate, normal.evict_out),
            prefetch_in: rate(self.prefetch_in_rate, normal.prefetch_in),
            prefetch_out: rate(self.prefetch_out_rate, normal.prefetch_out),
            kernel: rate(self.kernel_rate, normal.kernel),
            pinned_in: rate(self.pinned_in_rate, normal.pinned_in),
            pinned_out: rate(self.pinned_out_rate, normal.pinned_out),
            pinned_both: rate(self.pinned_both_rate, normal.pinned_both),
            register: rate(self.register_rate, normal.register),
            touch: rate(self.touch_rate, normal.touch),
            unregister: rate(self.unregister_rate, normal.unregister),
            host_memory: self.host_memory.unwrap_or(normal.host_memory),
            device_handles: self.handles.on_device(normal.device_handles),
            host_handles: self.handles.on_host(normal.host_handles),
            slice: time(self.slice_us, normal.slice).max(Duration::from_micros(1)),
            slice_change: time(self.slice_change_us, normal.slice_change),
            context_create: time(self.context_create_us, normal.context_create),
            death_release: time(self.death_release_us, normal.death_release),
            ..normal
        }
    }

    /// GPUs of the card, or their instances.
    pub(crate) fn gpus(&self) -> Vec<GpuDescription> {
        let normal = Constants::default().memory;
        let gpu = |index: u32| {
            let memory = self.memory.get(index as usize).or(self.memory.last());
            let mut own = *b"simulated card \0";
            own[15] = u8::try_from(index).unwrap_or(u8::MAX);
            let uuid = self.uuids.get(index as usize).copied().unwrap_or(own);
            let whole = GpuDescription {
                name: "Simulated GPU".to_owned(),
                uuid,
                memory: memory.copied().unwrap_or(normal),
                bus: index + 1,
                concurrent_managed: !self.no_concurrent_managed,
                read_only_registration: !self.no_read_only_registration,
                host_node: self.host_node,
                persistence: !self.no_persistence,
                refuses_exportable: self.refuse_exportable,
                part_of: None,
            };
            match self.divided.iter().find(|(divided, _)| *divided == index) {
                Some((_, parts)) => instances(&whole, parts),
                None => vec![whole],
            }
        };
        (0..self.gpus).flat_map(gpu).collect()
    }
}

/// Rates of the calls about physical memory.
#[derive(Debug, clap::Args)]
struct HandleOptions {
    /// Bytes per second of physical memory on a GPU that is created
    #[arg(long, value_parser = bytes)]
    device_create_rate: Option<u64>,
    /// Bytes per second of physical memory on a GPU that is mapped
    #[arg(long, value_parser = bytes)]
    device_map_rate: Option<u64>,
    /// Bytes per second of physical memory on a GPU that is unmapped
    #[arg(long, value_parser = bytes)]
    device_unmap_rate: Option<u64>,
    /// Bytes per second of physical memory on a GPU that is released
    #[arg(long, value_parser = bytes)]
    device_release_rate: Option<u64>,
    /// Bytes per second of physical memory on the host that is created
    #[arg(long, value_parser = bytes)]
    host_create_rate: Option<u64>,
    /// Bytes per second of physical memory on the host that is mapped
    #[arg(long, value_parser = bytes)]
    host_map_rate: Option<u64>,
    /// Bytes per second of physical memory on the host that is unmapped
    #[arg(long, value_parser = bytes)]
    host_unmap_rate: Option<u64>,
    /// Bytes per second of physical memory on the host that is released
    #[arg(long, value_parser = bytes)]
    host_release_rate: Option<u64>,
}

impl HandleOptions {
    fn on_device(&self, normal: HandleRates) -> HandleRates {
        HandleRates {
            create: rate(self.device_create_rate, normal.create),
            map: rate(self.device_map_rate, normal.map),
            unmap: rate(self.device_unmap_rate, normal.unmap),
            release: rate(self.device_release_rate, normal.release),
        }
    }

    fn on_host(&self, normal: HandleRates) -> HandleRates {
        HandleRates {
            create: rate(self.host_create_rate, normal.create),
            map: rate(self.host_map_rate, normal.map),
            unmap: rate(self.host_unmap_rate, normal.unmap),
            release: rate(self.host_release_rate, normal.release),
        }
    }
}

fn rate(given: Option<u64>, normal: Rate) -> Rate {
    given.map_or(normal, Rate)
}

/// The instances of a GPU, with UUIDs that follow from its own.
fn instances(whole: &GpuDescription, parts: &[u64]) -> Vec<GpuDescription> {
    let instance = |(number, memory): (u8, &u64)| {
        let mut uuid = whole.uuid;
        uuid[0] = !uuid[0];
        uuid[14] = number;
        GpuDescription {
            name: format!("{} MIG {}m", whole.name, memory >> 20),
            uuid,
            memory: *memory,
            bus: whole.bus,
            concurrent_managed: whole.concurrent_managed,
            read_only_registration: whole.read_only_registration,
            host_node: whole.host_node,
            persistence: whole.persistence,
            refuses_exportable: whole.refuses_exportable,
            part_of: Some(Divided { name: whole.name.clone(), uuid: whole.uuid }),
        }
    };
    (0..).zip(parts).map(instance).collect()
}

fn division(text: &str) -> Result<(u32, Vec<u64>), String> {
    let (gpu, parts) = text
        .split_once('=')
        .ok_or_else(|| format!("{text} names no GPU; write it like 0=32MiB,16MiB"))?;
    let gpu = gpu.parse().map_err(|_| format!("{gpu} is no number of a GPU"))?;
    Ok((gpu, parts.split(',').map(bytes).collect::<Result<_, _>>()?))
}

fn bytes(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "" | "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        unit => {
            return Err(format!("unit {unit} is not known; use B, KiB, MiB, GiB, MB or GB"));
        }
    };
    let number: u64 = digits
        .parse()
        .map_err(|_| format!("{text} is no number of bytes; write it like 256MiB"))?;
    number.checked_mul(unit).ok_or_else(|| format!("{text} is too much"))
}

fn uuid(text: &str) -> Result<[u8; 16], String> {
    let digits: String = text.trim_start_matches("GPU-").chars().filter(|c| *c != '-').collect();
    let number = u128::from_str_radix(&digits, 16).map_err(|_| format!("{text} is no UUID"))?;
    if digits.len() == 32 {
        Ok(number.to_be_bytes())
    } else {
        Err(format!("{text} has not 32 digits"))
    }
}
