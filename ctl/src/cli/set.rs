//! `gpushare-ctl set`: the settings that can be changed, and for whom.

use std::str::FromStr;

use clap::{Args, Subcommand};
use gpushare_proto::admin::Mode;
use gpushare_proto::session::{FreezeAfter, Priority};
use gpushare_proto::tenant::GpuChoice;

use super::terms::{ComputeLimit, MemoryLimit};
use super::values::{self, Auto, Capacity, ManagedLimit, NoneOr, Quantum, Reserve, Share, Target, Weight};

/// Change a setting of the running daemon
///
/// A setting of a card lasts until the daemon ends or reads its configuration file again (`reload`); the file makes it
/// permanent. Settings of sessions and users are stored. `auto` clears a fixed value of a card.
#[derive(Debug, Args)]
#[command(
    arg_required_else_help = false,
    after_long_help = "\
Examples:
  gpushare-ctl set quantum 100ms --gpu 0
  gpushare-ctl set quantum auto
  gpushare-ctl set mode serialized
  gpushare-ctl set capacity 4GiB --gpu 0
  gpushare-ctl set managed-limit 10GiB
  gpushare-ctl set context-reserve 300MiB
  gpushare-ctl set epsilon 2.5%
  gpushare-ctl set window-target 5ms --gpu 0
  gpushare-ctl set memory 4GiB --session train
  gpushare-ctl set weight 200 --session train
  gpushare-ctl set weight 300 --user ana
  gpushare-ctl set freeze-after 10min --session train
  gpushare-ctl set priority low --session train --json"
)]
pub(crate) struct SetArgs {
    #[command(subcommand)]
    pub(crate) command: SetCommand,
    /// Print one JSON document: `key`, `gpu` (null for all cards) or `session`, `old` and `new`
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

/// Setting to change.
#[derive(Debug, Subcommand)]
pub(crate) enum SetCommand {
    /// Length of a turn, like 100ms, or `auto` (from the cost of a handoff)
    Quantum(Change<Auto<Quantum>>),
    /// Mode of sharing: `parallel`, `time-sliced`, `serialized`, or `auto` (by memory, weights and limits)
    Mode(Change<Auto<Mode>>),
    /// Bytes that may be resident on the card at the same time, like 4GiB, or `auto` (its memory less the reserve)
    Capacity(Change<Auto<Capacity>>),
    /// Limit on the managed memory of all sessions together, like 10GiB
    ManagedLimit(Change<ManagedLimit>),
    /// Target time of a process's work in flight on a shared card, like 10ms; a handoff waits for that work
    WindowTarget(Change<Target>),
    /// Bytes that a CUDA context is assumed to take until they are measured, like 300MiB; at most an eighth of the card
    ContextReserve(Change<Reserve>),
    /// Share of time that handoffs may cost, like 5%
    Epsilon(Change<Share>),
    /// Memory limit of a session: 4GiB, 50%, by card like 0=8GiB,1=50%, or `none`
    Memory(ChangeSession<NoneOr<MemoryLimit>>),
    /// Limit of a card's time for a session, like 25%, or `none`
    Compute(ChangeSession<NoneOr<ComputeLimit>>),
    /// Weight of a session or a user: its share of the time, relative to 100
    Weight(ChangeWeight),
    /// Priority of a session: low, normal or high
    Priority(ChangeSession<Priority>),
    /// Idle time after which a session is frozen, like 10min, `off`, or `auto` for the daemon's freeze_after
    FreezeAfter(ChangeSession<FreezeAfter>),
}

/// New value for one session.
#[derive(Debug, Args)]
pub(crate) struct ChangeSession<T>
where
    T: FromStr + Clone + Send + Sync + 'static,
    T::Err: std::error::Error + Send + Sync + 'static,
{
    /// New value
    pub(crate) value: T,
    /// Number (3 or s3) or name of the session
    #[arg(long, value_name = "NAME-OR-ID")]
    pub(crate) session: String,
}

/// New weight of one session or of one user. The command checks that one of them is named.
#[derive(Debug, Args)]
pub(crate) struct ChangeWeight {
    /// New value
    #[arg(allow_negative_numbers = true)]
    pub(crate) value: Weight,
    /// Number (3 or s3) or name of the session: its share of the time of its user
    #[arg(long, value_name = "NAME-OR-ID")]
    pub(crate) session: Option<String>,
    /// Name or number of the user, or the control group of a container: the share of all its sessions together
    #[arg(long, value_name = "USER", conflicts_with = "session")]
    pub(crate) user: Option<String>,
}

/// New value for one card or for all.
#[derive(Debug, Args)]
pub(crate) struct Change<T>
where
    T: FromStr + Clone + Send + Sync + 'static,
    T::Err: std::error::Error + Send + Sync + 'static,
{
    /// New value
    pub(crate) value: T,
    /// Only this card: its number in `status`, or its UUID
    #[arg(long, value_name = "GPU", value_parser = values::one_card)]
    pub(crate) gpu: Option<GpuChoice>,
}
