//! Health of the cards, from NVML.
//!
//! A thread of its own asks NVML, since a call may never return when a card falls off the bus. The thread
//! waits for Xids and looks at all cards once a second. Others see from the time of the last look that NVML
//! hangs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use std::{io, thread};

use gpushare_proto::GpuUuid;
use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enums::device::SampleValue;
use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::structs::device::FieldId;
use nvml_wrapper::{Device, EventSet, Nvml};
use tokio::sync::watch;
use tracing::{debug, info, warn};

use crate::health::{Cause, Health, Look};

/// Interval between two looks at a card.
const EVERY: Duration = Duration::from_secs(1);
/// Time without a look after which NVML counts as hanging.
const PATIENCE: Duration = Duration::from_secs(15);
/// Number of looks at a lost card after which NVML is loaded again, since it may not find the card otherwise.
const RELOAD_AFTER: u32 = 10;

/// Field `NVML_FI_DEV_GET_GPU_RECOVERY_ACTION` of NVML's headers, since driver 570.
const RECOVERY_ACTION: FieldId = FieldId(230);

/// Reason for which each card is unhealthy; none for a healthy one.
pub(crate) type Causes = BTreeMap<GpuUuid, Option<Cause>>;

/// Health of all cards, as it changes.
#[derive(Clone, Debug)]
pub(crate) struct Watch {
    causes: Arc<watch::Sender<Causes>>,
    last_look: Arc<Mutex<Instant>>,
}

impl Watch {
    /// Starts the thread. A card that was `quiet` for so long after an Xid is healthy again.
    pub(crate) fn start(nvml: Nvml, cards: &[GpuUuid], quiet: Duration) -> io::Result<Self> {
        let healthy = cards.iter().map(|card| (*card, None)).collect();
        let watch = Self {
            causes: Arc::new(watch::Sender::new(healthy)),
            last_look: Arc::new(Mutex::new(Instant::now())),
        };
        let looker = Looker {
            watch: watch.clone(),
            healths: cards.iter().map(|card| (*card, Health::new(quiet))).collect(),
        };
        thread::Builder::new().name("nvml".to_owned()).spawn(move || looker.run(nvml))?;
        Ok(watch)
    }

    /// Returns the present health, and all changes of it.
    pub(crate) fn causes(&self) -> watch::Receiver<Causes> {
        self.causes.subscribe()
    }

    /// Notes that NVML hangs, if it does.
    pub(crate) fn check(&self, now: Instant) {
        let last = *self.last_look.lock().unwrap_or_else(PoisonError::into_inner);
        if now.saturating_duration_since(last) > PATIENCE {
            let cause = Cause::Lost(format!("no answer within {} s", PATIENCE.as_secs()));
            let cards: Vec<GpuUuid> = self.causes.borrow().keys().copied().collect();
            self.publish(cards.into_iter().map(|card| (card, Some(cause.clone()))).collect());
        }
    }

    fn publish(&self, new: Causes) {
        self.causes.send_if_modified(|old| {
            if *old == new {
                return false;
            }
            for (card, cause) in &new {
                match cause {
                    _ if old.get(card) == Some(cause) => {}
                    Some(cause) => warn!("{card} takes no new pods: {cause}"),
                    None => info!("{card} is healthy again"),
                }
            }
            *old = new;
            true
        });
    }
}

/// The thread that asks NVML.
struct Looker {
    watch: Watch,
    healths: BTreeMap<GpuUuid, Health>,
}

impl Looker {
    fn run(mut self, nvml: Nvml) {
        let mut loaded: Result<Nvml, NvmlError> = Ok(nvml);
        loop {
            match &loaded {
                Ok(nvml) => self.watch_with(nvml),
                Err(cause) => self.see(|_| Look::Lost(cause.to_string())),
            }
            // A second copy of NVML would find the state of the first one.
            drop(loaded);
            thread::sleep(EVERY);
            loaded = gpushare_nvml::load();
        }
    }

    /// Looks at the cards until NVML should be loaded again.
    fn watch_with(&mut self, nvml: &Nvml) {
        let wholes = self.wholes(nvml);
        let (mut events, mut watched) = (None, BTreeSet::new());
        let mut rounds_with_loss = 0;
        while rounds_with_loss < RELOAD_AFTER {
            self.see(|card| look(nvml, card));
            // A set fails as a whole if one of its cards does.
            let answering = self.answering(&wholes);
            if events.is_none() || answering != watched {
                events = self::events(nvml, &answering);
                watched = answering;
            }
            let is_lost = |cause: &Option<Cause>| matches!(cause, Some(Cause::Lost(_)));
            match self.watch.causes.borrow().values().any(is_lost) {
                true => rounds_with_loss += 1,
                false => rounds_with_loss = 0,
            }
            let next = Instant::now() + EVERY;
            while let Some(rest) = next.checked_duration_since(Instant::now()) {
                let Some(set) = &events else {
                    thread::sleep(rest);
                    break;
                };
                match set.wait(u32::try_from(rest.as_millis()).unwrap_or(u32::MAX).max(1)) {
                    Ok(event) => {
                        let xid = match event.event_data {
                            Some(XidError::Value(xid)) => xid,
                            Some(XidError::Unknown) | None => continue,
                        };
                        // A card that has just fallen off the bus does not say which it is.
                        self.note_xid(xid, event.device.uuid().ok().as_deref(), &wholes);
                    }
                    Err(NvmlError::Timeout) => {}
                    Err(cause) => {
                        debug!("NVML reports no Xids until the next look: {cause}");
                        events = None;
                    }
                }
            }
        }
    }

    /// Looks at each card and publishes its health.
    fn see(&mut self, look: impl Fn(GpuUuid) -> Look) {
        for (card, health) in &mut self.healths {
            health.see(look(*card));
        }
        let now = Instant::now();
        *self.watch.last_look.lock().unwrap_or_else(PoisonError::into_inner) = now;
        self.publish(now);
    }

    /// Publishes the health of each card as it is now.
    fn publish(&self, now: Instant) {
        self.watch
            .publish(self.healths.iter().map(|(card, health)| (*card, health.cause(now))).collect());
    }

    /// Notes an Xid of the GPU with the UUID `whole` and publishes it; of all GPUs if the UUID is not known.
    fn note_xid(&mut self, xid: u64, whole: Option<&str>, wholes: &[(GpuUuid, String)]) {
        info!("{} reports Xid {xid}", whole.unwrap_or("a card that does not answer"));
        let now = Instant::now();
        for (card, _) in wholes.iter().filter(|(_, own)| whole.is_none_or(|whole| own == whole)) {
            if let Some(health) = self.healths.get_mut(card) {
                health.xid(now, xid);
            }
        }
        // At once: at the next look the card may have been quiet for long enough.
        self.publish(now);
    }

    /// Returns the UUIDs of the GPUs that answered at the last look.
    fn answering(&self, wholes: &[(GpuUuid, String)]) -> BTreeSet<String> {
        let causes = self.watch.causes.borrow();
        let is_lost = |card: &GpuUuid| matches!(causes.get(card), Some(Some(Cause::Lost(_))));
        let answering = wholes.iter().filter(|(card, _)| !is_lost(card));
        answering.map(|(_, whole)| whole.clone()).collect()
    }

    /// Returns each card with the UUID of its whole GPU, which reports the Xids of a MIG instance.
    fn wholes(&self, nvml: &Nvml) -> Vec<(GpuUuid, String)> {
        let whole = |card: &GpuUuid| {
            let device = nvml.device_by_uuid(card.to_string()).ok()?;
            let whole = if card.is_instance() { device.mig_parent_device().ok()? } else { device };
            Some((*card, whole.uuid().ok()?))
        };
        self.healths.keys().filter_map(whole).collect()
    }
}

/// Returns a set in which the Xids of these GPUs arrive; none if NVML has no such events.
fn events<'nvml>(nvml: &'nvml Nvml, uuids: &BTreeSet<String>) -> Option<EventSet<'nvml>> {
    let mut set = nvml.create_event_set().ok()?;
    for uuid in uuids {
        let registered = nvml
            .device_by_uuid(uuid.as_str())
            .ok()?
            .register_events(EventTypes::CRITICAL_XID_ERROR, set);
        set = registered.inspect_err(|cause| debug!("NVML reports no Xids: {cause:?}")).ok()?;
    }
    Some(set)
}

/// Returns what NVML says about a card now.
fn look(nvml: &Nvml, card: GpuUuid) -> Look {
    let device = match nvml.device_by_uuid(card.to_string()) {
        Ok(device) => device,
        Err(cause) => return Look::Lost(cause.to_string()),
    };
    match device.memory_info() {
        // A card without memory of its own answers so.
        Ok(_) | Err(NvmlError::NotSupported) => {}
        Err(cause) => return Look::Lost(cause.to_string()),
    }
    recovery_action(&device).map_or(Look::Fine, Look::Needs)
}

/// Returns what the driver asks for; none also where the driver does not know.
fn recovery_action(device: &Device<'_>) -> Option<&'static str> {
    let values = device.field_values_for(&[RECOVERY_ACTION]).ok()?;
    let action = match values.into_iter().next()?.ok()?.value.ok()? {
        SampleValue::U32(action) => action,
        SampleValue::U64(action) => u32::try_from(action).ok()?,
        _ => return None,
    };
    // The values of `nvmlDeviceGpuRecoveryAction_t`.
    match action {
        1 => Some("a reset of the card"),
        2 => Some("a reboot of the node"),
        3 => Some("an end of the programs that use several cards"),
        4 => Some("a reset of the card once its programs have ended"),
        _ => None,
    }
}
