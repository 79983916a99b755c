// SPDX-License-Identifier: Apache-2.0

//! The gpu-nodes plugin keeps nodes with GPUs for the pods that ask for one: others
//! go there last or, where it is strict, not at all. Pods with GPUs go to the fullest
//! node, so that whole nodes stay free for those that want many.
const wp = @import("wasmplane");

var settings: struct { resource: []const u8, strict: bool = false } = undefined;

fn pods() wp.Column {
    return wp.int(wp.print("requests.scalar[\"{s}\"]", .{settings.resource}));
}
fn room() wp.Column {
    return wp.int(wp.print("allocatable.scalar[\"{s}\"]", .{settings.resource}));
}
fn taken() wp.Column {
    return wp.int(wp.print("requested.scalar[\"{s}\"]", .{settings.resource}));
}

const Pod = extern struct {
    gpus: i64,
    pub const columns = .{ .gpus = pods };
};

const Node = extern struct {
    gpus: i64,
    taken: i64,
    pub const columns = .{ .gpus = room, .taken = taken };
};

fn judge(pod: *const Pod, node: *const Node) wp.Judgement {
    if (pod.gpus == 0) {
        if (node.gpus == 0) return .fits(100);
        return if (settings.strict) .never(1) else .fits(0);
    }
    if (node.gpus == 0) return .never(2);
    if (node.taken + pod.gpus > node.gpus) return .unfit(0);
    return .fits(@divTrunc(100 * (node.taken + pod.gpus), node.gpus));
}

comptime {
    wp.plugin(.{
        .name = "gpu-nodes",
        .version = "1.0.0",
        .settings = &settings,
        .table = wp.table(judge, &.{ "node(s) had too few free GPUs", "node(s) were kept for pods with GPUs", "node(s) had no GPU" }),
    });
}
