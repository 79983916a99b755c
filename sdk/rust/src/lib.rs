// SPDX-License-Identifier: Apache-2.0

//! The Rust SDK for wasmplane plugins.
//!
//! A plugin is a function that describes it and functions that decide:
//!
//! ```ignore
//! use wasmplane::*;
//!
//! fn plugin() -> Plugin {
//!     Plugin::new("no-latest", "1.0.0").validate(
//!         Hook::new(decide)
//!             .rule(&["CREATE", "UPDATE"], &[""], &["pods"])
//!             .fields(&["object.spec.containers[*].image"]),
//!     )
//! }
//!
//! fn decide(input: &Input, out: &mut Decision) {
//!     for image in input.at(0).items() {
//!         if image.str().ends_with(":latest") {
//!             out.deny("an image is tagged latest");
//!         }
//!     }
//! }
//!
//! export!(plugin);
//! ```
//!
//! It is built as a `cdylib` for `wasm32-unknown-unknown`. The crate has no
//! dependencies, needs only `alloc`, and reads its input without parsing: the host sends the
//! declared fields as a flat table. One function of a plugin runs at a time.
#![no_std]
#![warn(missing_docs)]
#![allow(unknown_lints, unexpected_cfgs)] // wasmplane_component: for components, set by `wasmplane plugin build`

extern crate alloc;

mod abi;
mod answer;
mod json;
mod plugin;
#[doc(hidden)]
pub mod runtime;
mod scheduling;
mod value;

#[cfg(test)]
mod tests;

pub use answer::{Decision, Judgement, Patch, Plan, Target, Verdict};
pub use json::{parse, token, Json};
pub use plugin::{Column, Hook, Plugin, SideEffects, Table, Watch};
pub use runtime::{fail, host_call, log};
pub use abi::Event;
pub use scheduling::{Binding, Fit, Groups, Nomination, Permission, Preparation, Selection};
pub use value::{Input, Value};
