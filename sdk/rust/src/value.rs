// SPDX-License-Identifier: Apache-2.0

//! Views of the input, in the flat encoding (sdk/spec, section 5).

use crate::json::Json;
use alloc::string::String;

/// Kinds of cells.
const NULL: u8 = 0;
const TRUE: u8 = 2;
const INT: u8 = 3;
const FLOAT: u8 = 4;
const STRING: u8 = 5;
const ARRAY: u8 = 6;
const OBJECT: u8 = 7;
const ABSENT: u8 = 8;

/// A value of the input. It is a view: nothing is copied or parsed. What is
/// absent answers every method with the empty value.
#[derive(Clone, Copy)]
pub struct Value<'a> {
    data: &'a [u8],
    cell: u64,
}

#[inline]
fn word(data: &[u8], at: usize) -> u64 {
    match data.get(at..at + 8) {
        Some(b) => u64::from_le_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]]),
        None => (ABSENT as u64) << 60,
    }
}

impl<'a> Value<'a> {
    #[inline]
    pub(crate) fn root(data: &'a [u8]) -> Value<'a> {
        Value { data, cell: word(data, 0) }
    }

    #[inline]
    fn absent() -> Value<'a> {
        Value { data: &[], cell: (ABSENT as u64) << 60 }
    }

    #[inline]
    fn kind(&self) -> u8 {
        (self.cell >> 60) as u8
    }

    #[inline]
    fn offset(&self) -> usize {
        self.cell as u32 as usize
    }

    #[inline]
    fn child(&self, at: usize) -> Value<'a> {
        Value { data: self.data, cell: word(self.data, at) }
    }

    /// Whether the value is there; null is.
    #[inline]
    pub fn exists(&self) -> bool {
        self.kind() != ABSENT
    }

    /// Whether the value is there, and null.
    #[inline]
    pub fn is_null(&self) -> bool {
        self.kind() == NULL
    }

    /// A string's text.
    #[inline]
    pub fn str(&self) -> &'a str {
        core::str::from_utf8(self.bytes()).unwrap_or("")
    }

    /// A string's bytes.
    #[inline]
    fn bytes(&self) -> &'a [u8] {
        if self.kind() != STRING {
            return &[];
        }
        let length = (self.cell >> 32) as usize & 0x0fff_ffff;
        self.data.get(self.offset()..self.offset() + length).unwrap_or(&[])
    }

    /// Whether the value is true.
    #[inline]
    pub fn bool(&self) -> bool {
        self.kind() == TRUE
    }

    /// An integer, or the whole part of a number.
    #[inline]
    pub fn int(&self) -> i64 {
        match self.kind() {
            INT => word(self.data, self.offset()) as i64,
            FLOAT => f64::from_bits(word(self.data, self.offset())) as i64,
            _ => 0,
        }
    }

    /// A number.
    pub fn float(&self) -> f64 {
        match self.kind() {
            INT => word(self.data, self.offset()) as i64 as f64,
            FLOAT => f64::from_bits(word(self.data, self.offset())),
            _ => 0.0,
        }
    }

    /// The number of items of an array, or of keys of an object.
    #[inline]
    pub fn len(&self) -> usize {
        match self.kind() {
            ARRAY | OBJECT => (self.cell >> 32) as usize & 0x0fff_ffff,
            _ => 0,
        }
    }

    /// Whether there are no items or keys.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// An item of an array.
    #[inline]
    pub fn at(&self, index: usize) -> Value<'a> {
        if self.kind() == ARRAY && index < self.len() {
            self.child(self.offset() + 8 * index)
        } else {
            Value::absent()
        }
    }

    /// The value of a key of an object.
    #[inline]
    pub fn get(&self, key: &str) -> Value<'a> {
        let n = if self.kind() == OBJECT { self.len() } else { 0 };
        for i in 0..n {
            let at = self.offset() + 16 * i;
            if self.child(at).bytes() == key.as_bytes() {
                return self.child(at + 8);
            }
        }
        Value::absent()
    }

    pub(crate) fn json(self) -> Json {
        match self.kind() {
            1 | TRUE => Json::Bool(self.bool()),
            INT => Json::Int(self.int()),
            FLOAT => Json::Float(self.float()),
            STRING => Json::Str(String::from(self.str())),
            ARRAY => Json::Array(self.items().map(Value::json).collect()),
            OBJECT => Json::Object(self.entries().map(|(k, v)| (String::from(k), v.json())).collect()),
            _ => Json::Null,
        }
    }

    /// The items of an array.
    #[inline]
    pub fn items(self) -> impl Iterator<Item = Value<'a>> {
        let n = if self.kind() == ARRAY { self.len() } else { 0 };
        (0..n).map(move |i| self.at(i))
    }

    /// The keys of an object, with their values.
    #[inline]
    pub fn entries(self) -> impl Iterator<Item = (&'a str, Value<'a>)> {
        let n = if self.kind() == OBJECT { self.len() } else { 0 };
        (0..n).map(move |i| {
            let at = self.offset() + 16 * i;
            (self.child(at).str(), self.child(at + 8))
        })
    }
}

/// What a hook is asked about.
pub struct Input<'a> {
    root: Value<'a>,
    fields: &'a [&'static str],
}

impl<'a> Input<'a> {
    pub(crate) fn new(data: &'a [u8], fields: &'a [&'static str]) -> Input<'a> {
        Input { root: Value::root(data), fields }
    }

    /// The field with this index among those that the hook declared.
    #[inline]
    pub fn at(&self, field: usize) -> Value<'a> {
        self.root.at(field)
    }

    /// The value of a field, by the path under which the hook declared it. A hook
    /// that declared none reads the whole input by paths of names and dots.
    #[inline]
    pub fn get(&self, path: &str) -> Value<'a> {
        if let Some(i) = self.fields.iter().position(|f| *f == path) {
            return self.root.at(i);
        }
        if !self.fields.is_empty() {
            return Value::absent();
        }
        path.split('.').fold(self.root, |v, name| v.get(name))
    }

    /// The whole input of a hook that declared no fields.
    #[inline]
    pub fn root(&self) -> Value<'a> {
        self.root
    }
}
