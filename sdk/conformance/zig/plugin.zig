//! The conformance guest in Zig: it does what the guests in other languages do.
const std = @import("std");
const wp = @import("wasmplane");

var settings: wp.Value = .absent;

fn configure() ?[]const u8 {
    const refuse = settings.get("refuse");
    return if (refuse.exists()) refuse.str() else null;
}

fn mutate(in: wp.Document, out: *wp.Decision) void {
    const key = settings.get("key").str();
    out.add("/echo", in.root);
    out.add(wp.print("/metadata/labels/{s}", .{wp.token(key)}), wp.json(settings));
    out.replace("/spec/replicas", in.get("spec.replicas").int() + 1);
    out.remove("/spec/paused");
    out.warn("careful \"{s}\"\n", .{"now"});
    out.audit("key", "{s}", .{key});
}

const Named = wp.Input(&.{ "object.metadata.name", "object.metadata.labels", "operation" });

fn validate(in: Named, out: *wp.Decision) void {
    if (!in.get("operation").eql("CREATE")) return;
    out.denyField("metadata.name", "not {s}", .{in.get("object.metadata.name").str()});
    out.code(422);
}

fn convert(in: wp.Input(&.{ "object.spec.hostPort", "desiredAPIVersion" }), out: *wp.Decision) void {
    if (!in.get("object.spec.hostPort").exists()) return out.deny("no hostPort", .{});
    out.move("/spec/hostPort", "/spec/address");
    out.add("/spec/as", in.get("desiredAPIVersion"));
}

fn validateCustom(in: wp.Input(&.{"object.spec.port"}), out: *wp.Decision) void {
    if (in.get("object.spec.port").int() <= 9) return;
    out.cause("spec.port", "too \"{s}\"", .{"high"});
    out.cause("spec.name", "missing", .{});
}

fn authorize(in: wp.Input(&.{ "user", "resourceAttributes.namespace" })) wp.Verdict {
    const user = in.get("user");
    if (user.eql("root")) return wp.allow("root may", .{});
    if (in.get("resourceAttributes.namespace").eql("closed")) return wp.deny("closed to {s}", .{user.str()});
    return wp.no_opinion;
}

fn filter(in: wp.Input(&.{"node.metadata.name"})) ?[]const u8 {
    return if (std.mem.startsWith(u8, in.get("node.metadata.name").str(), "bad")) "node(s) were bad" else null;
}

fn rate(in: wp.Input(&.{"pods"})) i64 {
    const pods = in.get("pods").int();
    return switch (pods) {
        7 => @intCast(wp.askJSON("test.echo", .{ .n = 3000 }).get("text").str().len / 100),
        8 => if (wp.ask("test.none", "") == .failed) 99 else 24,
        else => 3 * pods,
    };
}

const Pod = extern struct {
    cpu: i64,
    pub const columns = .{ .cpu = wp.int("requests.milliCPU") };
};

fn allocatable() wp.Column {
    return wp.int("allocatable.pods");
}

const Node = extern struct {
    pods: i64,
    most: i64,
    pub const columns = .{ .pods = wp.int("pods"), .most = allocatable };
};

fn judge(pod: *const Pod, node: *const Node) wp.Judgement {
    const room = node.most - node.pods;
    if (room <= 0) return .never(1);
    return if (pod.cpu > room) .unfit(0) else .fits(room);
}

fn plan(in: wp.Document, out: *wp.Plan) void {
    const name = in.get("name").str();
    if (in.get("primary").isNull()) return out.delete("v1", "Service", in.get("namespace").str(), name);
    if (std.mem.eql(u8, name, "broken")) return out.fail("broken \"{s}\"", .{name});
    out.apply(.{ .apiVersion = "v1", .kind = "Service", .metadata = .{ .name = name }, .spec = in.get("primary.spec") });
    out.status(.{ .seen = true });
    out.condition("Ready", "True", "Made", "made it");
    out.event("Normal", "Made", "made {s}", .{name});
    out.requeue(30);
}

fn admit(in: wp.Input(&.{"pod.spec.hostNetwork"})) ?wp.Refusal {
    return if (in.get("pod.spec.hostNetwork").isTrue()) .{ .reason = "HostNetwork", .message = "no" } else null;
}

comptime {
    wp.plugin(.{
        .name = "conformance",
        .version = "1.2.3",
        .settings = &settings,
        .configure = configure,
        .mutate = wp.admission(mutate, &.{.{ .operations = &.{"CREATE"}, .groups = &.{""}, .versions = &.{"v1"}, .resources = &.{"pods"} }}),
        .validate = wp.admission(validate, &.{}),
        .convert = wp.admission(convert, &.{.{ .groups = &.{"example.com"}, .resources = &.{"endpoints"} }}),
        .validate_custom = wp.admission(validateCustom, &.{}),
        .authorize = authorize,
        .filter = filter,
        .score = rate,
        .table = wp.table(judge, &.{ "full", "never" }),
        .reconcile = wp.reconciler(
            plan,
            .{ .group = "apps", .resource = "deployments", .kind = "Deployment", .selector = "app=web" },
            &.{.{ .resource = "services", .kind = "Service" }},
        ),
        .node_admission = admit,
    });
}
