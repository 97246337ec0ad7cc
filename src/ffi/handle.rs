//! The registry of handles. A handle is a number that names a slot and the slot's generation, never an address:
//! a stale, foreign or doubly freed one is an error instead of memory corruption.

use super::error::{ErrorObject, rie_error};
use super::fork;
use super::options::{OptionsObject, rie_options};
use super::sampler::{SamplerObject, rie_sampler};
use super::session::{SessionObject, rie_session};
use super::source::{SourceObject, rie_source};
use super::text::{TextStreamObject, rie_text_stream};
use crate::bail;
use crate::error::{Error, Result, Status};
use crate::ffi::model::rie_model;
use crate::model::Model;
use std::ptr::without_provenance_mut;
use std::sync::{Arc, PoisonError, RwLock, RwLockWriteGuard};

/// In the top 16 bits of every handle: no user address of any 64-bit system lies there, so that neither a pointer nor
/// a garbage collector's bookkeeping can be mistaken for a handle, nor the reverse. Then 24 bits each:
const TAG: u64 = 0xA51E;
const GENERATION_BITS: u32 = 24;
const INDEX_BITS: u32 = 24;
const _: () = assert!(16 + GENERATION_BITS + INDEX_BITS == 64);

const LAST_GENERATION: u32 = (1 << GENERATION_BITS) - 1;
const MAX_SLOTS: usize = 1 << INDEX_BITS;

/// A kind of object that the host can hold.
pub trait Kind: Sized {
    /// The opaque type of the header.
    type Public;
    /// With its article, for messages.
    const NAME: &'static str;
    #[doc(hidden)]
    fn wrap(this: Arc<Self>) -> Object;
    #[doc(hidden)]
    fn of(object: &Object) -> Option<&Arc<Self>>;
}

macro_rules! kinds {
    ($($variant:ident($object:ty as $public:ty) $name:literal,)*) => {
        /// An object of any kind, kept alive by the registry and by the calls that use it.
        #[derive(Clone)]
        pub enum Object { $(#[doc = $name] $variant(Arc<$object>),)* }

        impl Object {
            /// With its article, for messages.
            pub fn kind(&self) -> &'static str {
                match self { $(Object::$variant(_) => $name,)* }
            }
        }

        $(impl Kind for $object {
            type Public = $public;
            const NAME: &'static str = $name;
            fn wrap(this: Arc<Self>) -> Object {
                Object::$variant(this)
            }
            fn of(object: &Object) -> Option<&Arc<Self>> {
                match object {
                    Object::$variant(o) => Some(o),
                    _ => None,
                }
            }
        })*
    };
}

kinds! {
    Error(ErrorObject as rie_error) "an error",
    Options(OptionsObject as rie_options) "options",
    Source(SourceObject as rie_source) "a source",
    Model(Model as rie_model) "a model",
    Session(SessionObject as rie_session) "a session",
    Sampler(SamplerObject as rie_sampler) "a sampler",
    TextStream(TextStreamObject as rie_text_stream) "a text stream",
}

struct Slot {
    /// Of the object in the slot, or of the next one to come; past `LAST_GENERATION` the slot is retired.
    generation: u32,
    object: Option<Object>,
}

/// All objects that the host holds.
pub struct Registry {
    slots: Vec<Slot>,
    /// Empty slots that are not retired. Has room for all slots, so that freeing never allocates.
    vacant: Vec<u32>,
}

impl Registry {
    const fn new() -> Registry {
        Registry { slots: Vec::new(), vacant: Vec::new() }
    }

    fn insert(&mut self, object: Object) -> Result<u64> {
        let index = match self.vacant.pop() {
            Some(index) => index,
            None => {
                if self.slots.len() == MAX_SLOTS {
                    bail!(NoMemory, "{MAX_SLOTS} handles are in use");
                }
                self.slots.try_reserve(1)?;
                self.vacant.try_reserve(self.slots.len() + 1)?;
                self.slots.push(Slot { generation: 1, object: None });
                self.slots.len() as u32 - 1
            }
        };
        let slot = &mut self.slots[index as usize];
        slot.object = Some(object);
        Ok(encode(slot.generation, index))
    }

    fn get(&self, handle: u64) -> Result<&Object> {
        self.find(handle).map(|index| self.slots[index].object.as_ref())?.ok_or_else(foreign)
    }

    /// Takes the object out; its slot is given to another object under the next generation.
    fn remove(&mut self, handle: u64) -> Result<Object> {
        let index = self.find(handle)?;
        let slot = &mut self.slots[index];
        let object = slot.object.take().ok_or_else(foreign)?;
        slot.generation += 1;
        if slot.generation <= LAST_GENERATION {
            self.vacant.push(index as u32);
        }
        Ok(object)
    }

    /// The index of the slot, if the handle is of its present generation.
    fn find(&self, handle: u64) -> Result<usize> {
        let index = (handle & (MAX_SLOTS as u64 - 1)) as usize;
        let generation = (handle >> INDEX_BITS) as u32 & LAST_GENERATION;
        match self.slots.get(index) {
            _ if handle >> (GENERATION_BITS + INDEX_BITS) != TAG => Err(foreign()),
            Some(slot) if slot.generation == generation => Ok(index),
            Some(slot) if (1..slot.generation).contains(&generation) => {
                Err(Error::new(Status::Handle, "the handle was freed"))
            }
            _ => Err(foreign()),
        }
    }
}

fn foreign() -> Error {
    Error::new(Status::Handle, "not a handle of this library")
}

fn encode(generation: u32, index: u32) -> u64 {
    TAG << (GENERATION_BITS + INDEX_BITS) | u64::from(generation) << INDEX_BITS | u64::from(index)
}

static REGISTRY: RwLock<Registry> = RwLock::new(Registry::new());

/// Keeps other threads from every handle until the result is dropped.
pub fn hold() -> RwLockWriteGuard<'static, Registry> {
    REGISTRY.write().unwrap_or_else(PoisonError::into_inner)
}

/// Gives `object` to the host.
pub fn publish<K: Kind>(object: K) -> Result<*mut K::Public> {
    fork::prepare();
    let object = K::wrap(Arc::new(object));
    let handle = hold().insert(object)?;
    Ok(without_provenance_mut(handle as usize))
}

/// The object of any kind behind `handle`, the argument `arg`. It lives on for as long as the result, whoever frees it.
pub fn any<P>(handle: *const P, arg: &str) -> Result<Object> {
    if handle.is_null() {
        bail!(InvalidArgument, "{arg}: NULL");
    }
    let registry = REGISTRY.read().unwrap_or_else(PoisonError::into_inner);
    registry.get(handle.addr() as u64).cloned().map_err(|e| e.at(arg))
}

/// The object of one kind behind `handle`.
pub fn get<K: Kind>(handle: *const K::Public, arg: &str) -> Result<Arc<K>> {
    let object = any(handle, arg)?;
    match K::of(&object) {
        Some(found) => Ok(found.clone()),
        None => bail!(Handle, "{arg}: expected {}, found {}", K::NAME, object.kind()),
    }
}

/// As [`get`], for an argument that may be NULL.
pub fn get_optional<K: Kind>(handle: *const K::Public, arg: &str) -> Result<Option<Arc<K>>> {
    if handle.is_null() { Ok(None) } else { get::<K>(handle, arg).map(Some) }
}

/// Takes the object away from the host. It is dropped by the caller, outside the registry's lock.
pub fn revoke<P>(handle: *const P) -> Result<Object> {
    hold().remove(handle.addr() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> Object {
        OptionsObject::wrap(Arc::default())
    }

    fn message<T>(r: Result<T>) -> String {
        let e = r.err().expect("an error");
        assert_eq!(e.status, Status::Handle);
        e.message
    }

    #[test]
    fn a_slot_is_used_again_under_another_name() {
        let mut r = Registry::new();
        let a = r.insert(options()).unwrap();
        let b = r.insert(options()).unwrap();
        assert_ne!(a, b);
        assert!(r.get(a).is_ok() && r.get(b).is_ok());
        r.remove(a).unwrap();
        assert_eq!(message(r.get(a)), "the handle was freed");
        assert_eq!(message(r.remove(a)), "the handle was freed");
        let c = r.insert(options()).unwrap();
        assert_eq!(r.slots.len(), 2);
        assert_ne!(a, c);
        assert_eq!(message(r.get(a)), "the handle was freed");
        assert!(r.get(c).is_ok() && r.get(b).is_ok());
    }

    #[test]
    fn numbers_never_given_out_are_foreign() {
        let mut r = Registry::new();
        let a = r.insert(options()).unwrap();
        let next_generation = encode(2, 0);
        for h in [0, 1, 0xFFFF, a ^ 1 << 63, a & u64::MAX >> 16, encode(0, 0), encode(1, 1), next_generation, u64::MAX]
        {
            assert_eq!(message(r.get(h)), "not a handle of this library", "{h:#x}");
            assert_eq!(message(r.remove(h)), "not a handle of this library", "{h:#x}");
        }
        r.remove(a).unwrap();
        assert_eq!(message(r.get(next_generation)), "not a handle of this library");
        assert_eq!(message(r.remove(next_generation)), "not a handle of this library");
    }

    #[test]
    fn an_exhausted_slot_is_retired() {
        let mut r = Registry::new();
        r.insert(options()).and_then(|h| r.remove(h)).unwrap();
        r.slots[0].generation = LAST_GENERATION;
        let last = r.insert(options()).unwrap();
        assert_eq!((last >> 48, last as u32 & LAST_GENERATION), (TAG, 0));
        r.remove(last).unwrap();
        assert_eq!(message(r.get(last)), "the handle was freed");
        assert_eq!(message(r.get(encode(1, 0))), "the handle was freed");
        let other = r.insert(options()).unwrap();
        assert_eq!(r.slots.len(), 2);
        assert!(r.get(other).is_ok());
    }

    #[test]
    fn another_kind_is_named_and_null_is_an_argument_error() {
        let handle = publish(OptionsObject::default()).unwrap();
        assert!(get::<OptionsObject>(handle, "options").is_ok());
        let e = get::<ErrorObject>(handle.cast(), "err").err().unwrap();
        assert_eq!((e.status, e.message.as_str()), (Status::Handle, "err: expected an error, found options"));
        let e = get::<ErrorObject>(std::ptr::null(), "err").err().unwrap();
        assert_eq!((e.status, e.message.as_str()), (Status::InvalidArgument, "err: NULL"));
        assert!(get_optional::<ErrorObject>(std::ptr::null(), "err").unwrap().is_none());

        let held = get::<OptionsObject>(handle, "options").unwrap();
        assert_eq!(Arc::strong_count(&held), 2);
        drop(revoke(handle).unwrap());
        assert_eq!(Arc::strong_count(&held), 1, "a call in progress keeps its object");
        assert!(revoke(handle).is_err());
    }
}
