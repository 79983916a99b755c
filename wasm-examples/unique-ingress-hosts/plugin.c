// SPDX-License-Identifier: Apache-2.0

/* The unique-ingress-hosts plugin refuses an Ingress for a host that an Ingress of
 * another namespace has already. It reads the other ones from the host. */
#include "wasmplane.h"

static void decide(wp_input in, wp_answer *out) {
    wp_value namespace = wp_field(in, 0), hosts = wp_field(in, 1);
    if (!wp_len(hosts)) return;
    int failed = 0;
    size_t n;
    const char *reply = wp_call("objects.list", &n, &failed,
                                "{\"apiVersion\":\"networking.k8s.io/v1\",\"kind\":\"Ingress\",\"fields\":[\"metadata.namespace\",\"metadata.name\",\"spec.rules[*].host\"]}");
    if (failed) {
        wp_fail(out, "cannot read the other Ingresses: %s", reply);
        return;
    }
    wp_value items = wp_get(wp_parse(reply, n), "items");
    for (size_t i = 0; i < wp_len(items); i++) {
        wp_value meta = wp_get(wp_at(items, i), "metadata"), rules = wp_path(wp_at(items, i), "spec.rules");
        if (wp_same(wp_get(meta, "namespace"), namespace)) continue;
        for (size_t r = 0; r < wp_len(rules); r++)
            for (size_t h = 0; h < wp_len(hosts); h++)
                if (wp_same(wp_get(wp_at(rules, r), "host"), wp_at(hosts, h)))
                    wp_deny_field(out, "spec.rules", "host %t belongs to Ingress %t in namespace %t", wp_at(hosts, h), wp_get(meta, "name"), wp_get(meta, "namespace"));
    }
}

WP_PLUGIN = {
    .name = "unique-ingress-hosts", .version = "1.0.0", .needs = {"objects.list"},
    .validate = {
        .decide = decide,
        .match = {{.operations = {"CREATE", "UPDATE"}, .groups = {"networking.k8s.io"}, .resources = {"ingresses"}}},
        .fields = {"namespace", "object.spec.rules[*].host"},
    },
};
