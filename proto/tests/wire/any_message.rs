//! Random messages for property tests: a deserializer that takes every value from a tape of random bytes.
//!
//! ```text
//!   random bytes ── Tape: "a u64?", "which of these variants?", "how many elements?" ──▶ a message
//! ```
//!
//! It follows the derived `Deserialize`, so a new message needs no code here. An exhausted tape yields zeros: the
//! first variant, the empty sequence, no option.

use std::fmt::Debug;

use gpushare_proto::GpuUuid;
use proptest::collection::vec;
use proptest::prelude::*;
use serde::de::value::{Error, U32Deserializer};
use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, EnumAccess, IntoDeserializer, MapAccess, SeqAccess,
    VariantAccess, Visitor,
};

type Result<T> = std::result::Result<T, Error>;

/// Returns a strategy for any message of one type. Texts hold any characters, sequences may be empty.
pub(crate) fn any_message<M: DeserializeOwned + Debug>() -> impl Strategy<Value = M> {
    vec(any::<u8>(), 0..1000).prop_map(|bytes| {
        let mut tape = Tape { bytes: bytes.into_iter(), name: "" };
        M::deserialize(&mut tape).expect("a tape has an answer to everything")
    })
}

struct Tape {
    bytes: std::vec::IntoIter<u8>,
    /// Name of the field or variant that is read: the ones named here are texts of a fixed form.
    name: &'static str,
}

impl Tape {
    fn byte(&mut self) -> u8 {
        self.bytes.next().unwrap_or(0)
    }

    /// Returns a little-endian number of at most `N` bytes, as often short as long.
    fn number<const N: usize>(&mut self) -> [u8; N] {
        let long = usize::from(self.byte()) % (N + 1);
        std::array::from_fn(|at| if at < long { self.byte() } else { 0 })
    }

    fn text(&mut self) -> String {
        if matches!(self.name, "uuid" | "Uuid" | "gpu" | "placed") {
            let bytes = std::array::from_fn(|_| self.byte());
            return match self.byte() % 2 {
                0 => GpuUuid::gpu(bytes).to_string(),
                _ => GpuUuid::mig(bytes).to_string(),
            };
        }
        let length = self.byte() % 12;
        (0..length)
            .filter_map(|_| char::from_u32(u32::from_le_bytes(self.number())))
            .collect()
    }

    fn visit<'de, V: Visitor<'de>>(
        &mut self,
        visitor: V,
        names: &'static [&'static str],
    ) -> Result<V::Value> {
        visitor.visit_seq(Elements { tape: self, left: names.len(), names })
    }
}

macro_rules! numbers {
    ($($read:ident $visit:ident $number:ty),* $(,)?) => {$(
        fn $read<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
            visitor.$visit(<$number>::from_le_bytes(self.number()))
        }
    )*};
}

impl<'de> Deserializer<'de> for &mut Tape {
    type Error = Error;

    numbers! {
        deserialize_u8 visit_u8 u8, deserialize_u16 visit_u16 u16, deserialize_u32 visit_u32 u32,
        deserialize_u64 visit_u64 u64,
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        visitor.visit_bool(self.byte() % 2 == 1)
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        visitor.visit_string(self.text())
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        match self.byte() % 2 {
            0 => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, left: usize, visitor: V) -> Result<V::Value> {
        visitor.visit_seq(Elements { tape: self, left, names: &[] })
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        let left = usize::from(self.byte()) % 4;
        self.deserialize_tuple(left, visitor)
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        let left = usize::from(self.byte()) % 4;
        visitor.visit_map(Elements { tape: self, left, names: &[] })
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value> {
        self.visit(visitor, fields)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value> {
        let index = usize::from(self.byte()) % variants.len();
        self.name = variants[index];
        visitor.visit_enum(Variant { tape: self, index: u32::try_from(index).unwrap() })
    }

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value> {
        Err(serde::de::Error::custom("no message has a value of this kind"))
    }

    serde::forward_to_deserialize_any! {
        i8 i16 i32 i64 i128 u128 f32 f64 char str bytes byte_buf unit unit_struct tuple_struct identifier ignored_any
    }
}

/// Elements of a sequence or map, or fields of a struct.
struct Elements<'a> {
    tape: &'a mut Tape,
    left: usize,
    names: &'static [&'static str],
}

impl Elements<'_> {
    fn next<'de, T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>> {
        if self.left == 0 {
            return Ok(None);
        }
        if let Some(name) = self.names.len().checked_sub(self.left) {
            self.tape.name = self.names[name];
        }
        self.left -= 1;
        seed.deserialize(&mut *self.tape).map(Some)
    }
}

impl<'de> SeqAccess<'de> for Elements<'_> {
    type Error = Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>> {
        self.next(seed)
    }
}

impl<'de> MapAccess<'de> for Elements<'_> {
    type Error = Error;

    fn next_key_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>> {
        self.next(seed)
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value> {
        seed.deserialize(&mut *self.tape)
    }
}

struct Variant<'a> {
    tape: &'a mut Tape,
    index: u32,
}

impl<'a, 'de> EnumAccess<'de> for Variant<'a> {
    type Error = Error;
    type Variant = Self;

    fn variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<(T::Value, Self)> {
        let index: U32Deserializer<Error> = self.index.into_deserializer();
        Ok((seed.deserialize(index)?, self))
    }
}

impl<'de> VariantAccess<'de> for Variant<'_> {
    type Error = Error;

    fn unit_variant(self) -> Result<()> {
        Ok(())
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value> {
        seed.deserialize(self.tape)
    }

    fn tuple_variant<V: Visitor<'de>>(self, left: usize, visitor: V) -> Result<V::Value> {
        self.tape.deserialize_tuple(left, visitor)
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value> {
        self.tape.visit(visitor, fields)
    }
}
