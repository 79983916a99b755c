//! The image-policy plugin: see the package's documentation. It reads what it asked for.
const std = @import("std");
const wp = @import("wasmplane");

const images = "object.spec.containers[*].image";
const init_images = "object.spec.initContainers[*].image";
const rights = "object.spec.containers[*].securityContext.privileged";
const init_rights = "object.spec.initContainers[*].securityContext.privileged";
const labels = "object.metadata.labels";

fn validate(in: wp.Input(&.{ images, init_images, rights, init_rights }), out: *wp.Decision) void {
    _ = judge(in, out);
}

fn mutate(in: wp.Input(&.{ images, init_images, rights, init_rights, labels }), out: *wp.Decision) void {
    if (judge(in, out) and !in.get(labels).get("checked").exists())
        out.add("/metadata/labels/checked", "yes");
}

fn judge(in: anytype, out: *wp.Decision) bool {
    inline for (.{ images, init_images }) |field| {
        var list = in.get(field).items();
        while (list.next()) |image| if (!pinned(image.str())) {
            out.deny("image {s} has no fixed tag", .{image.str()});
            return false;
        };
    }
    inline for (.{ rights, init_rights }) |field| {
        var list = in.get(field).items();
        while (list.next()) |right| if (right.isTrue()) {
            out.deny("a container is privileged", .{});
            return false;
        };
    }
    return true;
}

fn pinned(image: []const u8) bool {
    const name = if (std.mem.lastIndexOfScalar(u8, image, '/')) |i| image[i + 1 ..] else image;
    if (std.mem.indexOfScalar(u8, name, '@') != null) return true;
    return std.mem.indexOfScalar(u8, name, ':') != null and !std.mem.endsWith(u8, name, ":latest");
}

const pods: []const wp.Rule = &.{.{ .operations = &.{"CREATE"}, .groups = &.{""}, .resources = &.{"pods"} }};

comptime {
    wp.plugin(.{ .name = "image-policy", .version = "1.0.0", .validate = wp.admission(validate, pods), .mutate = wp.admission(mutate, pods) });
}
