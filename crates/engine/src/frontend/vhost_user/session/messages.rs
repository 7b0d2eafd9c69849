//! Messages of a monitor, and how a session handles them.

use super::super::channel::Received;
use super::super::inflight::Inflight;
use super::super::memory::Memory;
use super::super::queue::{Queue, Setup, is_eventfd};
use super::super::vring::{Fault, Parts, SIZE_MAX, Vring};
use super::{FEATURES, QUEUES_MAX, Served, Session, SessionError};
use crate::ring::Ring;
use mainstay_codec::vhost_user::{CONFIG_BYTES_MAX, InflightArea, Message, config, protocol, reply};
use mainstay_codec::virtio_blk::{CONFIG_WRITEBACK_AT, feature};
use std::os::fd::OwnedFd;
use std::rc::Rc;

/// Messages that are taken in one go.
const MESSAGES_MAX: usize = 32;

impl Session {
    /// Takes what the monitor has to say.
    pub(super) fn converse(&mut self, ring: &mut Ring) -> Result<(), SessionError> {
        for _ in 0..MESSAGES_MAX {
            if self.draining.is_some() {
                return Ok(());
            }
            let Some(received) = self.channel.receive()? else { return Ok(()) };
            let Received { header, message, files } = received;
            let has_answer = matches!(
                message,
                Message::GetFeatures
                    | Message::GetRingBase { .. }
                    | Message::GetProtocolFeatures
                    | Message::GetQueueCount
                    | Message::GetConfig { .. }
                    | Message::GetInflight(_)
            );
            let accepted = self.message(ring, header.request, header.len, message, files)?;
            if header.need_reply && !has_answer {
                self.channel.send(&reply(header.request, &u64::from(!accepted).to_le_bytes()), None)?;
            }
        }
        Ok(())
    }

    /// Does what a message says; whether it could be done.
    fn message(
        &mut self,
        ring: &mut Ring,
        request: u32,
        len: usize,
        message: Message,
        mut files: Vec<OwnedFd>,
    ) -> Result<bool, SessionError> {
        let answer = |body: &[u8]| self.channel.send(&reply(request, body), None);
        match message {
            Message::GetFeatures => answer(&FEATURES.to_le_bytes())?,
            Message::GetProtocolFeatures => answer(&protocol::SPOKEN.to_le_bytes())?,
            Message::GetQueueCount => answer(&(QUEUES_MAX as u64).to_le_bytes())?,
            Message::GetConfig { offset, len } => answer(&self.config_part(offset, len))?,
            Message::SetFeatures(bits) if bits & !FEATURES != 0 => {
                return Err(SessionError::Refused("it takes features that were not offered"));
            }
            Message::SetFeatures(bits) => self.features = bits,
            Message::SetProtocolFeatures(bits) if bits & !protocol::SPOKEN != 0 => {
                return Err(SessionError::Refused("it takes protocol features that were not offered"));
            }
            // Nothing depends on them but what it asks for.
            Message::SetProtocolFeatures(_) | Message::SetOwner | Message::ResetOwner => {}
            Message::SetConfig { offset, bytes } => return Ok(self.set_config(offset, &bytes)),
            Message::SetMemTable(regions) => self.memory = Some(Rc::new(Memory::map(&regions, files)?)),
            Message::GetInflight(area) => {
                let (area, file) = self.make_inflight(&area)?;
                self.channel.send(&reply(request, &area.encode(len)), Some(&file))?;
            }
            Message::SetInflight(area) => {
                let file = files.pop().ok_or(SessionError::Refused("its notes have no file"))?;
                self.set_inflight(&area, file)?;
            }
            Message::SetRingSize { ring, size } => match u16::try_from(size) {
                Ok(size) if size <= SIZE_MAX && size.is_power_of_two() => self.setup(ring)?.size = size,
                _ => return Err(SessionError::Refused("a ring has an impossible size")),
            },
            Message::SetRingAddresses { ring, addresses } => self.setup(ring)?.addresses = addresses,
            Message::SetRingBase { ring, base } => {
                let base = u16::try_from(base);
                self.setup(ring)?.base =
                    base.map_err(|_| SessionError::Refused("a ring has an impossible base"))?;
            }
            Message::SetRingKick { ring: number, file } => {
                let file = eventfd(file, files)?;
                if file.is_none() {
                    return Err(SessionError::Refused("a ring without kicks is not served"));
                }
                self.queue(number)?.set_kick(ring, file);
                self.start(number)?;
            }
            Message::SetRingCall { ring: number, file } => {
                let file = eventfd(file, files)?;
                self.queue(number)?.set_call(ring, file);
            }
            // Errors are logged here; the file is closed.
            Message::SetRingError { ring, .. } => _ = self.queue(ring)?,
            Message::EnableRing { ring, enable } => {
                let queue = self.queue(ring)?;
                queue.enabled = enable;
                queue.due = true;
            }
            Message::GetRingBase { ring } => {
                self.queue(ring)?;
                self.draining = Some(ring as u16);
                // Answered by `drain`.
            }
            Message::Unknown => {
                return Err(SessionError::Refused("it sent a message that is not spoken here"));
            }
        }
        Ok(true)
    }

    fn queue(&mut self, number: u32) -> Result<&mut Queue, SessionError> {
        let place = number as usize;
        if place >= QUEUES_MAX {
            return Err(SessionError::Refused("it has no such ring"));
        }
        if place >= self.queues.len() {
            self.queues.resize_with(place + 1, Queue::default);
        }
        Ok(&mut self.queues[place])
    }

    fn setup(&mut self, number: u32) -> Result<&mut Setup, SessionError> {
        self.queue(number).map(|queue| &mut queue.setup)
    }

    fn config_part(&self, offset: u32, len: u32) -> Vec<u8> {
        let Some(end) = offset.checked_add(len).filter(|end| *end <= CONFIG_BYTES_MAX) else {
            return config(offset, &[]);
        };
        let mut bytes = self.config.encode().to_vec();
        bytes.resize(CONFIG_BYTES_MAX as usize, 0);
        config(offset, &bytes[offset as usize..end as usize])
    }

    /// A driver may say that it wants a volatile cache. It then flushes, which changes nothing.
    fn set_config(&mut self, offset: u32, bytes: &[u8]) -> bool {
        match bytes {
            [writeback] if offset as usize == CONFIG_WRITEBACK_AT => {
                self.config.writeback = *writeback != 0;
                true
            }
            _ => false,
        }
    }

    fn make_inflight(&self, area: &InflightArea) -> Result<(InflightArea, OwnedFd), SessionError> {
        let (queues, size) = (area.queues, area.queue_size);
        if queues == 0 || usize::from(queues) > QUEUES_MAX || size == 0 || size > SIZE_MAX {
            return Err(SessionError::Refused("it wants notes for an impossible number of queues"));
        }
        Ok(Inflight::make(self.served.disk, self.served.run, queues, size)?)
    }

    fn set_inflight(&mut self, area: &InflightArea, file: OwnedFd) -> Result<(), SessionError> {
        if self.queues.iter().any(|queue| queue.vring.is_some()) {
            return Err(SessionError::Refused("it changes its notes while they are used"));
        }
        let Served { disk, run, .. } = self.served;
        let (inflight, last) = Inflight::open(disk, area, file)?;
        self.requests.is_stale = last != run;
        if self.requests.is_stale {
            tracing::warn!(
                resource = %disk.resource, volume = %disk.volume, %last, %run,
                "a virtual machine is of the past: another node may have written meanwhile, so it gets errors until it is \
                 started again"
            );
        }
        self.inflight = Some(inflight);
        Ok(())
    }

    /// A queue has its kick file: it runs from now on.
    fn start(&mut self, number: u32) -> Result<(), SessionError> {
        let queue = &mut self.queues[number as usize];
        if queue.vring.is_some() {
            return Ok(());
        }
        let memory = self.memory.as_ref().ok_or(SessionError::Refused("it starts a ring without memory"))?;
        let Setup { size, addresses, base } = queue.setup;
        let find = |user, bytes| {
            let found = memory.guest_address(user, bytes);
            found.ok_or(SessionError::Refused("a ring is not in its memory"))
        };
        let parts = Parts {
            descriptors: find(addresses.descriptors, 16)?,
            available: find(addresses.available, 4)?,
            used: find(addresses.used, 4)?,
        };
        let event_idx = self.features & feature::EVENT_IDX != 0;
        let started = Vring::new(memory, size, parts, event_idx, base);
        let mut vring = started.map_err(|Fault(why)| SessionError::Refused(why))?;
        let number = number as u16;
        match &self.inflight {
            Some(inflight) if number >= inflight.queues() || size > inflight.size() => {
                return Err(SessionError::Refused("a ring has no place in its notes"));
            }
            Some(inflight) if inflight.is_fresh(number) => inflight.begin(number, vring.used()),
            Some(inflight) => {
                let heads = inflight.resume(number, vring.used());
                for head in &heads {
                    inflight.take(number, *head, self.requests.next_counter());
                }
                vring.set_available(vring.used().wrapping_add(heads.len() as u16));
                if !heads.is_empty() {
                    tracing::info!(
                        queue = number,
                        requests = heads.len(),
                        "what was in flight is asked for again"
                    );
                }
                queue.again = heads.into();
            }
            None if base != 0 && base != queue.told_base => {
                tracing::warn!(
                    "a virtual machine is in the midst of something and has no notes of what was in flight, so it gets errors \
                     until it is started again"
                );
                self.requests.is_stale = true;
            }
            None => {}
        }
        queue.vring = Some(vring);
        queue.broken = false;
        queue.due = true;
        Ok(())
    }
}

/// The file of a kick or a call.
fn eventfd(has: bool, mut files: Vec<OwnedFd>) -> Result<Option<OwnedFd>, SessionError> {
    match (has, files.pop(), files.is_empty()) {
        (false, None, _) => Ok(None),
        (true, Some(file), true) if is_eventfd(&file) => Ok(Some(file)),
        _ => Err(SessionError::Refused("a ring's file is none, or no eventfd")),
    }
}
