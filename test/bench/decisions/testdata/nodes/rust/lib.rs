//! The fewest-pods plugin prefers nodes with room for pods. One call judges all nodes.
use wasmplane::*;

fn plugin() -> Plugin {
    let table = Table::new(judge).column(Column::int("pods")).column(Column::int("allocatable.pods")).reason("node(s) were full");
    Plugin::new("fewest-pods", "0.1.0").table(table)
}

fn judge(_: &[i64], node: &[i64]) -> Judgement {
    if node[0] >= node[1] {
        return Judgement::Unfit(0);
    }
    Judgement::Fits(100 * (node[1] - node[0]) / node[1])
}

export!(plugin);
