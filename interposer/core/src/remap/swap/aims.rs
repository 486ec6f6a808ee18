//! Aims of the chunks, derived from the goal and the phase of the gate.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};

use gpushare_proto::Bytes;
use gpushare_proto::page::GoalNumber;

use super::chunks::Sum;
use super::{Engine, Entry, Phase, SMALL_CHUNK, SMALL_PART, Trouble};
use crate::driver::types::CUdeviceptr;
use crate::remap::chunk::Aim;
use crate::remap::vmm::{Call, Span, Tier, VmmError};

pub(super) const DEVICE: Aim = Aim::At(Tier::Device);

/// Number of spans of work by which a chunk that is mapped from the host must have been named more often than
/// one that it replaces. One alone may be chance, and then both would change places again.
const MORE_USES: u32 = 2;
/// Number of small chunks at each end of a move.
const ENDS: usize = 2;

impl Engine {
    /// Sets the aims of all chunks anew, after facts have changed.
    pub(super) fn settle(&mut self) {
        if std::mem::replace(&mut self.is_settled, true) {
            return;
        }
        self.is_changed = true;
        if !matches!(self.phase, Phase::Drained | Phase::Entering) || self.lost.is_some() {
            return;
        }
        self.send_out();
        if self.phase == Phase::Entering {
            self.bring_in();
        }
        for address in self.promotable() {
            self.turn(address, DEVICE);
        }
        self.exchange();
    }

    /// Maps a chunk of the card from the host if work named one of the same size that is mapped so clearly
    /// more often, which then has room on the card. Both need memory of the host for a moment. If it has
    /// none, the first one waits until the second one has left. One pair changes places at a time, so that a
    /// gate that is to open does not wait for long, and at most one chunk more is mapped meanwhile.
    fn exchange(&mut self) {
        let is_complete = self.host_mapped() <= self.host_room && self.chunks.count(Sum::Away) == 0;
        let may_begin = self.phase == Phase::Drained && self.may_exchange && is_complete;
        if !may_begin || self.chunks.count(Sum::Promotable) == 0 {
            return;
        }
        let (size, uses) = (|entry: &Entry| entry.chunk.span().size, |entry: &Entry| entry.uses.count());
        let is_candidate = |entry: &&Entry| entry.is_victim() && entry.chunk.tier() == Some(Tier::Device);
        let mut coldest: BTreeMap<Bytes, &Entry> = BTreeMap::new();
        for entry in self.chunks.values().filter(is_candidate) {
            let least = coldest.entry(size(entry)).or_insert(entry);
            if uses(entry) < uses(least) {
                *least = entry;
            }
        }
        let hosted = || self.chunks.values().filter(|entry| entry.is_promotable());
        let with_partner = hosted().filter_map(|hot| {
            let cold = coldest.get(&size(hot)).filter(|cold| uses(cold) + MORE_USES <= uses(hot))?;
            Some((hot, cold.chunk.span().address))
        });
        let Some((hot, address)) = with_partner.max_by_key(|(hot, _)| (uses(hot), Reverse(hot.turn))) else {
            return;
        };
        // It would take a part of the room.
        if hosted().any(|other| size(other) < size(hot) && uses(other) > uses(hot)) {
            return;
        }
        self.turn(address, Aim::At(Tier::Host));
    }

    /// Bytes that the goal has room for beside all present handles and those that are to be created.
    pub fn room(&self) -> Bytes {
        self.goal.bytes - self.held()
    }

    /// Bytes of all handles on the card.
    pub(super) fn present(&self) -> Bytes {
        self.chunks.bytes(Sum::Present) + self.loose.device
    }

    /// Bytes of the card that are taken, or will be.
    fn held(&self) -> Bytes {
        self.chunks.bytes(Sum::Held) + self.loose.device
    }

    /// Bytes of the card that are taken and that nothing takes away.
    fn committed(&self) -> Bytes {
        self.chunks.bytes(Sum::Committed) + self.loose.device
    }

    /// Bytes that are mapped from the host, or will be.
    pub(super) fn host_mapped(&self) -> Bytes {
        self.chunks.bytes(Sum::HostMapped) + self.loose.host
    }

    /// Aims chunks away until the rest fits the goal.
    fn send_out(&mut self) {
        let excess = self.committed() - self.goal.bytes;
        if excess.is_zero() || self.goal.number == GoalNumber::NONE {
            return;
        }
        for address in in_order(self.victims(excess)) {
            self.has_new_victims |= self.turn(address, Aim::Away);
        }
    }

    /// Chooses chunks of at least `excess` bytes, if there are as many, and of less than one chunk more.
    /// Chunks without a handle come first, then those that need no copy, then those that have a slot.
    fn victims(&self, excess: Bytes) -> Vec<(CUdeviceptr, Bytes)> {
        let is_small_move = excess < SMALL_PART;
        let candidates = self.chunks.values().filter(|entry| entry.is_victim());
        let mut candidates: Vec<_> = candidates
            .map(|Entry { chunk, turn, .. }| {
                let Span { address, size } = chunk.span();
                let by_size = if is_small_move { size } else { Bytes::MAX - size };
                let cost = (chunk.tier().is_some(), !chunk.is_clean(), !chunk.has_slot());
                (cost, by_size, Reverse(*turn), address, size)
            })
            .collect();
        candidates.sort_unstable();
        let mut candidates: VecDeque<_> =
            candidates.into_iter().map(|(.., address, size)| (address, size)).collect();
        let (mut victims, mut left) = (Vec::new(), excess);
        if !is_small_move {
            // Small chunks for both ends of the move.
            let is_small = |&(_, size): &(CUdeviceptr, Bytes)| size <= SMALL_CHUNK;
            let ends: Vec<_> = candidates.iter().copied().filter(is_small).take(2 * ENDS).collect();
            candidates.retain(|candidate| !ends.contains(candidate));
            left -= ends.iter().map(|(_, size)| *size).sum();
            victims.extend(ends);
        }
        while !left.is_zero() {
            let Some(first) = candidates.pop_front() else { break };
            if first.1 < left {
                left -= first.1;
                victims.push(first);
                continue;
            }
            candidates.push_front(first);
            victims.extend(last_victims(&candidates, left));
            break;
        }
        victims
    }

    /// Aims holes at the card while the goal has room, and maps others from the host if that is allowed.
    fn bring_in(&mut self) {
        let (mut batch, mut beyond) = (Vec::new(), Vec::new());
        let (mut room, mut uncommitted) = (self.room(), self.goal.bytes - self.committed());
        for address in self.holes(|entry| entry.trouble.is_none()) {
            let Some(Entry { chunk, .. }) = self.chunks.get(address) else { continue };
            let size = chunk.span().size;
            // A handle that is still there is counted already.
            let is_present = chunk.tier() == Some(Tier::Device);
            if uncommitted < size || (!is_present && room < size) {
                beyond.push((address, size));
                continue;
            }
            uncommitted -= size;
            room -= if is_present { Bytes::ZERO } else { size };
            batch.push((address, size));
        }
        for address in in_order(batch) {
            self.turn(address, DEVICE);
        }
        if self.overflows {
            beyond.extend(self.immovable_holes());
            for (address, size) in beyond {
                self.map_from_host(address, size);
            }
        }
        let is_refused = |entry: &Entry| {
            let create = Call::Create(Tier::Device);
            entry.trouble == Some(Trouble::Driver(create, VmmError::OutOfMemory))
        };
        for address in self.holes(is_refused) {
            let Some(entry) = self.chunks.get(address) else { continue };
            let size = entry.chunk.span().size;
            if entry.chunk.is_immovable() {
                continue;
            }
            // A chunk that left the card for this one took its place in host memory. So one may be mapped beyond what the
            // daemon allows.
            let may_exceed = self.may_exchange && self.host_mapped() <= self.host_room;
            let is_mapped = match may_exceed {
                true => self.turn(address, Aim::At(Tier::Host)),
                false => self.map_from_host(address, size),
            };
            if is_mapped {
                self.do_without_card(address);
            }
        }
    }

    /// Chunks that are mapped from the host and for which the goal has room on the card, beside all holes:
    /// those first that work named most often, then the largest, and of one size the one that was mapped
    /// first.
    fn promotable(&self) -> Vec<CUdeviceptr> {
        if self.chunks.count(Sum::Promotable) == 0 {
            return Vec::new();
        }
        let mut hosted: Vec<_> = self.chunks.values().filter(|entry| entry.is_promotable()).collect();
        hosted
            .sort_by_key(|entry| (Reverse(entry.uses.count()), Reverse(entry.chunk.span().size), entry.turn));
        let holes = self.chunks.values().filter(|entry| entry.chunk.aim() == Aim::Away);
        let holes: Bytes = holes.map(|entry| entry.chunk.span().size).sum();
        let mut room = self.room() - holes;
        let has_room = |entry: &&Entry| {
            let size = entry.chunk.span().size;
            let fits = size <= room;
            room -= if fits { size } else { Bytes::ZERO };
            fits
        };
        hosted
            .into_iter()
            .filter(has_room)
            .map(|entry| entry.chunk.span().address)
            .collect()
    }

    /// Immovable holes for which the goal has no room, although they aim at the card.
    fn immovable_holes(&self) -> Vec<(CUdeviceptr, Bytes)> {
        let mut excess = self.committed() - self.goal.bytes;
        let is_hole = |entry: &&Entry| {
            let chunk = &entry.chunk;
            let is_waiting = chunk.tier().is_none() && chunk.asked().is_none() && !entry.is_unborn;
            chunk.is_immovable() && chunk.aim() == DEVICE && is_waiting
        };
        let mut holes = Vec::new();
        for entry in self.chunks.values().filter(is_hole) {
            if excess.is_zero() {
                break;
            }
            let Span { address, size } = entry.chunk.span();
            excess -= size;
            holes.push((address, size));
        }
        holes
    }

    /// Chunks that aim away: those first that still have a handle, then those that work named most often, then the
    /// oldest.
    fn holes(&self, is_meant: impl Fn(&Entry) -> bool) -> Vec<CUdeviceptr> {
        let away = |entry: &Entry| entry.chunk.aim() == Aim::Away && !entry.is_unborn && is_meant(entry);
        let holes = self.chunks.values().filter(|entry| away(entry));
        let mut holes: Vec<_> = holes
            .map(|Entry { chunk, turn, uses, .. }| {
                let is_absent = chunk.tier() != Some(Tier::Device);
                (is_absent, Reverse(uses.count()), *turn, chunk.span().address)
            })
            .collect();
        holes.sort_unstable();
        holes.into_iter().map(|(.., address)| address).collect()
    }

    fn map_from_host(&mut self, address: CUdeviceptr, size: Bytes) -> bool {
        let has_room = self.host_room.saturating_sub(self.host_mapped()) >= size;
        has_room && self.turn(address, Aim::At(Tier::Host))
    }

    /// Forgives a chunk that the card has no memory for it, since the host has.
    fn do_without_card(&mut self, address: CUdeviceptr) {
        self.chunks.change(address, |entry| {
            (entry.trouble, entry.failures, entry.is_refused) = (None, 0, true);
        });
    }

    /// Sets the aim of a chunk, which is then the last in the order of work.
    fn turn(&mut self, address: CUdeviceptr, aim: Aim) -> bool {
        self.turns += 1;
        let turn = self.turns;
        let set = self.chunks.change(address, |entry| {
            entry.turn = turn;
            entry.chunk.set_aim(aim)
        });
        set == Some(true)
    }
}

impl Entry {
    /// Whether the chunk is on the card, or is to come there, and may leave.
    fn is_victim(&self) -> bool {
        let Self { chunk, trouble, is_unborn, .. } = self;
        let has_failed = trouble.is_some() && chunk.tier().is_some();
        chunk.aim() == DEVICE && !chunk.is_immovable() && !is_unborn && !has_failed
    }

    /// Whether the chunk is mapped from the host, and may come to the card.
    pub(super) fn is_promotable(&self) -> bool {
        let Self { chunk, trouble, is_unborn, is_refused, .. } = self;
        let is_hosted = chunk.tier() == Some(Tier::Host) && chunk.aim() == Aim::At(Tier::Host);
        let is_movable = !chunk.is_immovable() && !is_unborn && !is_refused;
        is_hosted && is_movable && chunk.is_usable() && trouble.is_none()
    }
}

/// Puts the smallest chunks of a move at its ends.
fn in_order(mut batch: Vec<(CUdeviceptr, Bytes)>) -> Vec<CUdeviceptr> {
    batch.sort_by_key(|(_, size)| *size);
    let ends = batch.len().min(2 * ENDS);
    let last = batch.drain(ends / 2..ends).collect::<Vec<_>>();
    batch[ends / 2..].sort_by_key(|(_, size)| Reverse(*size));
    batch.into_iter().chain(last).map(|(address, _)| address).collect()
}

/// Chooses the chunks that end a move of which `left` bytes are left: small ones, or the smallest one that is
/// large enough if that is less. The candidates have one of `left` bytes or more.
fn last_victims(candidates: &VecDeque<(CUdeviceptr, Bytes)>, left: Bytes) -> Vec<(CUdeviceptr, Bytes)> {
    let one = candidates
        .iter()
        .filter(|(_, size)| *size >= left)
        .min_by_key(|(_, size)| *size);
    let mut taken = Bytes::ZERO;
    let small = candidates.iter().filter(|(_, size)| *size <= SMALL_CHUNK);
    let several: Vec<_> = small
        .take_while(|(_, size)| {
            let is_needed = taken < left;
            taken += *size;
            is_needed
        })
        .copied()
        .collect();
    let sum: Bytes = several.iter().map(|(_, size)| *size).sum();
    match one {
        Some(one) if sum < left || one.1 <= sum => vec![*one],
        _ => several,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_move_begins_and_ends_with_its_smallest_chunks() {
        let order = |sizes: &[u64]| {
            let batch = sizes.iter().enumerate().map(|(i, &size)| (i as CUdeviceptr, Bytes(size)));
            let order = in_order(batch.collect());
            order.into_iter().map(|i| sizes[i as usize]).collect::<Vec<_>>()
        };
        assert_eq!(order(&[128, 32, 128, 32, 32, 64, 32]), [32, 32, 128, 128, 64, 32, 32]);
        assert_eq!(order(&[128, 32, 64]), [32, 64, 128]);
        assert_eq!(order(&[8]), [8]);
        assert_eq!(order(&[]), [0_u64; 0]);
    }
}
