/* The conformance guest in C: what README.md beside this folder says, in terms of the SDK. */
#include "wasmplane.h"

static const char *key = "", *text = "";

static const char *configure(wp_value settings) {
    if (wp_exists(wp_get(settings, "refuse"))) return wp_string(wp_get(settings, "refuse"));
    key = wp_string(wp_get(settings, "key"));
    text = wp_format("%v", settings);
    return 0;
}

static void mutate(wp_input in, wp_answer *out) {
    wp_add(out, "/echo", "%v", in);
    wp_add(out, wp_format("/metadata/labels/%k", key), "%q", text);
    wp_replace(out, "/spec/replicas", "%D", wp_int(wp_path(in, "spec.replicas")) + 1);
    wp_remove(out, "/spec/paused");
    wp_warn(out, "careful \"%s\"\n", "now");
    wp_audit(out, "key", "%s", key);
}

static void validate(wp_input in, wp_answer *out) {
    if (!wp_eq(wp_field(in, 2), "CREATE")) return;
    wp_deny_field(out, "metadata.name", "not %t", wp_field(in, 0));
    wp_code(out, 422);
}

static void convert(wp_input in, wp_answer *out) {
    if (!wp_exists(wp_field(in, 0))) {
        wp_deny(out, "no hostPort");
        return;
    }
    wp_move(out, "/spec/hostPort", "/spec/address");
    wp_add(out, "/spec/as", "%v", wp_field(in, 1));
}

static void validate_custom(wp_input in, wp_answer *out) {
    if (wp_int(wp_field(in, 0)) <= 9) return;
    wp_cause(out, "spec.port", "too \"%s\"", "high");
    wp_cause(out, "spec.name", "missing");
}

static wp_verdict authorize(wp_input in) {
    if (wp_eq(wp_field(in, 0), "root")) return wp_allow("root may");
    if (wp_eq(wp_field(in, 1), "closed")) return wp_refuse("closed to %t", wp_field(in, 0));
    return WP_NO_OPINION;
}

static void filter(wp_input in, wp_answer *out) {
    if (wp_has_prefix(wp_field(in, 0), "bad")) wp_deny(out, "node(s) were bad");
}

static int64_t rate(wp_input in) {
    int64_t pods = wp_int(wp_field(in, 0));
    int failed = 0;
    if (pods == 7) return (int64_t)(wp_len(wp_get(wp_ask("test.echo", "{\"n\":%d}", 3000), "text")) / 100);
    if (pods == 8) wp_call("test.none", 0, &failed, "");
    return failed ? 99 : 3 * pods;
}

static wp_judgement judge(const int64_t *pod, const int64_t *node) {
    int64_t room = node[1] - node[0];
    return room <= 0 ? wp_never(1) : pod[0] > room ? wp_unfit(0) : wp_fits(room);
}
WP_TABLE(judge);

static void plan(wp_input in, wp_answer *out) {
    wp_value name = wp_get(in, "name"), primary = wp_get(in, "primary");
    if (wp_is_null(primary)) {
        wp_delete(out, "v1", "Service", wp_string(wp_get(in, "namespace")), wp_string(name));
        return;
    }
    if (wp_eq(name, "broken")) {
        wp_fail(out, "broken \"%t\"", name);
        return;
    }
    wp_apply(out, "{\"apiVersion\":\"v1\",\"kind\":\"Service\",\"metadata\":{\"name\":%v},\"spec\":%v}", name, wp_get(primary, "spec"));
    wp_status(out, "{\"seen\":true}");
    wp_condition(out, "Ready", "True", "Made", "made it");
    wp_event(out, "Normal", "Made", "made %t", name);
    wp_requeue(out, 30);
}

static void admit(wp_input in, wp_answer *out) {
    if (wp_bool(wp_field(in, 0))) wp_deny_field(out, "HostNetwork", "no");
}

WP_PLUGIN = {
    .name = "conformance", .version = "1.2.3", .settings = configure,
    .mutate = {.decide = mutate, .match = {{.operations = {"CREATE"}, .groups = {""}, .versions = {"v1"}, .resources = {"pods"}}}},
    .validate = {.decide = validate, .fields = {"object.metadata.name", "object.metadata.labels", "operation"}},
    .convert = {.decide = convert, .match = {{.groups = {"example.com"}, .resources = {"endpoints"}}}, .fields = {"object.spec.hostPort", "desiredAPIVersion"}},
    .validate_custom = {.decide = validate_custom, .fields = {"object.spec.port"}},
    .authorize = {.decide = authorize, .fields = {"user", "resourceAttributes.namespace"}},
    .filter = {.decide = filter, .fields = {"node.metadata.name"}},
    .score = {.rate = rate, .fields = {"pods"}},
    .table = {.judge_all = judge_all, .columns = {{.path = "pods"}, {.path = "allocatable.pods"}}, .pod = {{.path = "requests.milliCPU"}}, .reasons = {"full", "never"}},
    .reconcile = {.plan = plan,
                  .primary = {"apps", "v1", "deployments", "Deployment", "app=web"},
                  .owned = {{"", "v1", "services", "Service", ""}}},
    .node_admission = {.decide = admit, .fields = {"pod.spec.hostNetwork"}},
};
