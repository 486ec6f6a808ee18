//! Cards of the machine, from NVML.

use gpushare_proto::GpuUuid;
use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;

use crate::card::Card;

/// Reason why the cards are not known.
#[derive(Debug, thiserror::Error)]
pub enum CardsError {
    /// NVML cannot be loaded.
    #[error(
        "NVIDIA's management library (libnvidia-ml.so.1) cannot be used: {0}; install the driver, and see that \
         `nvidia-smi -L` lists the cards"
    )]
    Nvml(#[from] NvmlError),
    /// NVML lists no card.
    #[error("NVIDIA's driver lists no card; `nvidia-smi -L` must list one")]
    None,
}

/// Loads NVML, and returns it with the cards that it lists, in its order. A card without an identity is left out.
pub fn load() -> Result<(Nvml, Vec<Card>), CardsError> {
    let nvml = gpushare_nvml::load()?;
    let cards: Vec<Card> = gpushare_nvml::devices(&nvml)
        .filter_map(|device| {
            let uuid: GpuUuid = device.uuid().ok()?.parse().ok()?;
            let minor = if uuid.is_instance() { None } else { device.minor_number().ok() };
            Some(Card { uuid, minor })
        })
        .collect();
    if cards.is_empty() { Err(CardsError::None) } else { Ok((nvml, cards)) }
}
