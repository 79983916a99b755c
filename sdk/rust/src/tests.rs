// SPDX-License-Identifier: Apache-2.0

//! What the SDK reads of a flat input is what the JSON form of the vectors says.

extern crate std;

use crate::value::Input;
use crate::*;
use alloc::{string::String, vec::Vec};

fn vectors() -> Vec<Json> {
    parse(include_bytes!("../../spec/vectors/projections.json")).unwrap().items().to_vec()
}

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len() / 2).map(|i| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).unwrap()).collect()
}

/// The value as the JSON reader would have it.
fn tree(v: Value) -> Json {
    let mut out = Vec::new();
    if !v.is_empty() && v.entries().next().is_some() {
        return Json::Object(v.entries().map(|(k, c)| (String::from(k), tree(c))).collect());
    }
    if !v.is_empty() {
        return Json::Array(v.items().map(tree).collect());
    }
    Json::Str(String::from(v.str())).write(&mut out);
    if out != b"\"\"" {
        return Json::from(v.str());
    }
    Json::Null
}

#[test]
fn documents_read_as_their_json() {
    let mut seen = 0;
    for v in vectors() {
        if v.get("fields").items().is_empty() && !v.get("flat").str().is_empty() {
            let data = bytes(v.get("flat").str());
            let root = Input::new(&data, &[]).root();
            let (got, want) = (tree(root), v.get("json"));
            assert_eq!(got.get("a"), want.get("a"), "{}", v.get("name").str());
            assert_eq!(root.get("b").len(), want.get("b").items().len());
            assert_eq!(root.get("b").at(1).int(), -2);
            assert!(root.get("b").at(3).bool() && root.get("b").at(5).is_null() && !root.get("b").at(9).exists());
            seen += 1;
        }
    }
    assert_eq!(seen, 1);
}

#[test]
fn fields_are_read_by_index_and_by_path() {
    let v = vectors().into_iter().find(|v| v.get("name").str() == "types of values").unwrap();
    let data = bytes(v.get("flat").str());
    let input = Input::new(&data, &["object.spec.replicas", "object.spec.ratio", "object.spec.hostNetwork", "object.metadata.name"]);
    assert_eq!(input.at(0).int(), 3);
    assert_eq!(input.get("object.spec.ratio").float(), 0.5);
    assert!(input.at(2).bool());
    assert_eq!(input.get("object.metadata.name").str(), "web");
    assert!(!input.get("object.metadata.uid").exists());
}

#[test]
fn lies_in_the_input_are_absent() {
    for data in [&[][..], &[0xff; 8], &[0xff; 64], &[8, 0, 0, 0, 0xff, 0xff, 0xff, 0x6f], &[0xff, 0xff, 0xff, 0xff, 4, 0, 0, 0x50]] {
        let v = Input::new(data, &[]).root();
        let _ = (v.str(), v.int(), v.float(), v.get("x").exists(), v.at(3).exists());
    }
}

#[test]
fn settings_are_parsed() {
    let v = parse(br#" {"a": [1, -2.5, "x\u00e9\ud83d\ude00\n", true, null], "b": {}} "#).unwrap();
    assert_eq!(v.get("a").items()[0].int(), 1);
    assert_eq!(v.get("a").items()[2].str(), "x\u{e9}\u{1f600}\n");
    assert!(v.get("a").items()[3].bool());
    for wrong in ["", "{", "[1", "\"", "{\"a\"}", "tru", "1 2", "\"\\u12\""] {
        assert!(parse(wrong.as_bytes()).is_err(), "{}", wrong);
    }
}

fn decide(input: &Input, out: &mut Decision) {
    if input.get("operation").str() == "CREATE" {
        out.deny_field("metadata.name", "not \"this\"");
        out.code(422);
    }
}

#[test]
fn a_plugin_describes_itself_and_decides() {
    let v = vectors().into_iter().find(|v| v.get("name").str() == "several values share their way").unwrap();
    let hook = Hook::new(decide).rule(&["CREATE"], &[""], &["pods"]).fields(&["object.metadata.name", "object.metadata.labels", "operation"]);
    let p = Plugin::new("test", "1").validate(hook);
    let manifest = parse(&p.describe()).unwrap();
    assert_eq!(manifest.get("abi").int(), 1);
    assert_eq!(manifest.get("hooks").items()[0].get("point").str(), "admission.validate");
    let answer = parse(&p.call(2, &bytes(v.get("flat").str())).unwrap()).unwrap();
    assert_eq!(answer.get("allowed"), &Json::Bool(false));
    assert_eq!(answer.get("message").str(), "not \"this\"");
    assert_eq!(answer.get("code").int(), 422);
    assert!(p.call(3, &[]).is_err());
}
