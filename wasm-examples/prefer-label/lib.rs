// SPDX-License-Identifier: Apache-2.0

//! The prefer-label plugin prefers nodes with a label, and can keep pods off the
//! others. It keeps a node table: one call judges all nodes.
use std::cell::RefCell;
use wasmplane::*;

thread_local! { static WANT: RefCell<(String, String, bool)> = RefCell::new(("disk".into(), "ssd".into(), false)); }

fn plugin() -> Plugin {
    let (label, value, required) = WANT.with(|w| w.borrow().clone());
    let table = if required { Table::new(require) } else { Table::new(prefer) }
        .column(Column::equals(&format!("node.metadata.labels[{:?}]", label), &value))
        .reason(&format!("node(s) didn't have the label {}={}", label, value));
    Plugin::new("prefer-label", "1.0.0").settings(configure).table(table)
}

fn configure(s: &Json) -> Result<(), String> {
    if s.get("label").str().is_empty() || s.get("value").str().is_empty() {
        return Err("label and value are missing".into());
    }
    WANT.with(|w| w.replace((s.get("label").str().into(), s.get("value").str().into(), s.get("required").bool())));
    Ok(())
}

fn prefer(_: &[i64], node: &[i64]) -> Judgement {
    Judgement::Fits(100 * node[0])
}

fn require(_: &[i64], node: &[i64]) -> Judgement {
    if node[0] == 1 { Judgement::Fits(100) } else { Judgement::Never(0) }
}

export!(plugin);
