// SPDX-License-Identifier: Apache-2.0

//! JSON: a writer for answers, and a reader for settings.

use crate::value::Value;
use alloc::{string::String, vec::Vec};

/// A JSON value: of the settings, or to be written.
#[derive(Clone, Debug, PartialEq)]
pub enum Json {
    /// null
    Null,
    /// true or false
    Bool(bool),
    /// an integer
    Int(i64),
    /// any other number
    Float(f64),
    /// a string
    Str(String),
    /// an array
    Array(Vec<Json>),
    /// an object; the order of keys is kept
    Object(Vec<(String, Json)>),
}

impl From<&str> for Json {
    fn from(s: &str) -> Json {
        Json::Str(String::from(s))
    }
}

impl From<String> for Json {
    fn from(s: String) -> Json {
        Json::Str(s)
    }
}

impl From<i64> for Json {
    fn from(i: i64) -> Json {
        Json::Int(i)
    }
}

impl From<f64> for Json {
    fn from(f: f64) -> Json {
        Json::Float(f)
    }
}

impl From<bool> for Json {
    fn from(b: bool) -> Json {
        Json::Bool(b)
    }
}

impl From<Vec<Json>> for Json {
    fn from(list: Vec<Json>) -> Json {
        Json::Array(list)
    }
}

/// What the plugin was asked, as JSON: a part of an input becomes a part of an answer.
impl From<Value<'_>> for Json {
    fn from(v: Value) -> Json {
        v.json()
    }
}

impl core::fmt::Display for Json {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let mut out = Vec::new();
        self.write(&mut out);
        f.write_str(&String::from_utf8_lossy(&out))
    }
}

/// Writes a key as part of a patch's path: slashes and tildes are escaped.
pub fn token(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}

impl Json {
    /// An object of keys and values.
    pub fn object<const N: usize>(entries: [(&str, Json); N]) -> Json {
        Json::Object(entries.into_iter().map(|(k, v)| (String::from(k), v)).collect())
    }

    /// The value of a key; null where there is none.
    pub fn get(&self, key: &str) -> &Json {
        if let Json::Object(entries) = self {
            for (k, v) in entries {
                if k == key {
                    return v;
                }
            }
        }
        &Json::Null
    }

    /// A string's text, "" for anything else.
    pub fn str(&self) -> &str {
        match self {
            Json::Str(s) => s,
            _ => "",
        }
    }

    /// A number's whole part, 0 for anything else.
    pub fn int(&self) -> i64 {
        match self {
            Json::Int(i) => *i,
            Json::Float(f) => *f as i64,
            _ => 0,
        }
    }

    /// Whether this is true.
    pub fn bool(&self) -> bool {
        *self == Json::Bool(true)
    }

    /// The items of an array, none of anything else.
    pub fn items(&self) -> &[Json] {
        match self {
            Json::Array(items) => items,
            _ => &[],
        }
    }

    /// The keys of an object with their values, none of anything else.
    pub fn entries(&self) -> &[(String, Json)] {
        match self {
            Json::Object(entries) => entries,
            _ => &[],
        }
    }

    /// Writes the value.
    pub fn write(&self, out: &mut Vec<u8>) {
        match self {
            Json::Null => out.extend_from_slice(b"null"),
            Json::Bool(true) => out.extend_from_slice(b"true"),
            Json::Bool(false) => out.extend_from_slice(b"false"),
            Json::Int(i) => int(out, *i),
            Json::Float(f) => {
                use alloc::string::ToString;
                out.extend_from_slice(f.to_string().as_bytes())
            }
            Json::Str(s) => string(out, s),
            Json::Array(items) => {
                out.push(b'[');
                for (i, item) in items.iter().enumerate() {
                    if i > 0 {
                        out.push(b',');
                    }
                    item.write(out);
                }
                out.push(b']');
            }
            Json::Object(entries) => {
                out.push(b'{');
                for (i, (k, v)) in entries.iter().enumerate() {
                    if i > 0 {
                        out.push(b',');
                    }
                    string(out, k);
                    out.push(b':');
                    v.write(out);
                }
                out.push(b'}');
            }
        }
    }
}

pub(crate) fn int(out: &mut Vec<u8>, value: i64) {
    let mut digits = [0u8; 20];
    let mut at = digits.len();
    let mut rest = value.unsigned_abs();
    loop {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    if value < 0 {
        out.push(b'-');
    }
    out.extend_from_slice(&digits[at..]);
}

pub(crate) fn string(out: &mut Vec<u8>, s: &str) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    out.push(b'"');
    for c in s.bytes() {
        match c {
            b'"' | b'\\' => out.extend_from_slice(&[b'\\', c]),
            b'\n' => out.extend_from_slice(b"\\n"),
            0..=0x1f => {
                out.extend_from_slice(b"\\u00");
                out.extend_from_slice(&[HEX[(c >> 4) as usize], HEX[(c & 15) as usize]]);
            }
            _ => out.push(c),
        }
    }
    out.push(b'"');
}

/// Reads a JSON document.
pub fn parse(data: &[u8]) -> Result<Json, String> {
    let mut p = Parser { data, at: 0 };
    let v = p.value(0)?;
    p.space();
    if p.at != data.len() {
        return Err(String::from("bytes behind the JSON document"));
    }
    Ok(v)
}

struct Parser<'a> {
    data: &'a [u8],
    at: usize,
}

impl<'a> Parser<'a> {
    fn fail<T>(&self) -> Result<T, String> {
        Err(String::from("not a JSON document"))
    }

    fn peek(&self) -> u8 {
        self.data.get(self.at).copied().unwrap_or(0)
    }

    fn space(&mut self) {
        while matches!(self.peek(), b' ' | b'\t' | b'\n' | b'\r') {
            self.at += 1;
        }
    }

    fn next(&mut self, c: u8) -> bool {
        self.space();
        let found = self.peek() == c;
        if found {
            self.at += 1;
        }
        found
    }

    fn word(&mut self, word: &[u8], v: Json) -> Result<Json, String> {
        if self.data[self.at..].starts_with(word) {
            self.at += word.len();
            return Ok(v);
        }
        self.fail()
    }

    fn value(&mut self, depth: usize) -> Result<Json, String> {
        self.space();
        if depth > 100 {
            return self.fail();
        }
        match self.peek() {
            b'{' => self.object(depth),
            b'[' => self.array(depth),
            b'"' => Ok(Json::Str(self.string()?)),
            b't' => self.word(b"true", Json::Bool(true)),
            b'f' => self.word(b"false", Json::Bool(false)),
            b'n' => self.word(b"null", Json::Null),
            _ => self.number(),
        }
    }

    fn number(&mut self) -> Result<Json, String> {
        let from = self.at;
        while matches!(self.peek(), b'+' | b'-' | b'.' | b'e' | b'E' | b'0'..=b'9') {
            self.at += 1;
        }
        let text = core::str::from_utf8(&self.data[from..self.at]).unwrap_or("");
        if let Ok(i) = text.parse::<i64>() {
            return Ok(Json::Int(i));
        }
        match text.parse::<f64>() {
            Ok(f) => Ok(Json::Float(f)),
            Err(_) => self.fail(),
        }
    }

    fn object(&mut self, depth: usize) -> Result<Json, String> {
        self.at += 1;
        let mut entries = Vec::new();
        if self.next(b'}') {
            return Ok(Json::Object(entries));
        }
        loop {
            self.space();
            if self.peek() != b'"' {
                return self.fail();
            }
            let key = self.string()?;
            if !self.next(b':') {
                return self.fail();
            }
            entries.push((key, self.value(depth + 1)?));
            if self.next(b'}') {
                return Ok(Json::Object(entries));
            }
            if !self.next(b',') {
                return self.fail();
            }
        }
    }

    fn array(&mut self, depth: usize) -> Result<Json, String> {
        self.at += 1;
        let mut items = Vec::new();
        if self.next(b']') {
            return Ok(Json::Array(items));
        }
        loop {
            items.push(self.value(depth + 1)?);
            if self.next(b']') {
                return Ok(Json::Array(items));
            }
            if !self.next(b',') {
                return self.fail();
            }
        }
    }

    fn string(&mut self) -> Result<String, String> {
        self.at += 1;
        let mut out = Vec::new();
        loop {
            let c = match self.data.get(self.at) {
                Some(c) => *c,
                None => return self.fail(),
            };
            self.at += 1;
            match c {
                b'"' => return String::from_utf8(out).or_else(|_| self.fail()),
                b'\\' => self.escape(&mut out)?,
                _ => out.push(c),
            }
        }
    }

    fn escape(&mut self, out: &mut Vec<u8>) -> Result<(), String> {
        let c = self.peek();
        self.at += 1;
        let plain = match c {
            b'n' => b'\n',
            b't' => b'\t',
            b'r' => b'\r',
            b'b' => 8,
            b'f' => 12,
            b'u' => {
                let mut code = self.hex()?;
                if (0xd800..0xdc00).contains(&code) && self.data[self.at..].starts_with(b"\\u") {
                    self.at += 2;
                    code = 0x10000 + ((code - 0xd800) << 10) + (self.hex()? & 0x3ff);
                }
                let mut buffer = [0; 4];
                let c = char::from_u32(code).unwrap_or('\u{fffd}');
                out.extend_from_slice(c.encode_utf8(&mut buffer).as_bytes());
                return Ok(());
            }
            0 => return self.fail(),
            other => other,
        };
        out.push(plain);
        Ok(())
    }

    fn hex(&mut self) -> Result<u32, String> {
        let digits = match self.data.get(self.at..self.at + 4) {
            Some(d) => core::str::from_utf8(d).unwrap_or(""),
            None => "",
        };
        self.at += 4;
        u32::from_str_radix(digits, 16).or_else(|_| self.fail())
    }
}
