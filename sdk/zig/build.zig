// SPDX-License-Identifier: Apache-2.0

const std = @import("std");

/// The module is called wasmplane: `b.dependency("wasmplane", .{}).module("wasmplane")`.
pub fn build(b: *std.Build) void {
    _ = b.addModule("wasmplane", .{ .root_source_file = b.path("wasmplane.zig") });
}
