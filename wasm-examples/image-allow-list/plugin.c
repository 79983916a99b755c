// SPDX-License-Identifier: Apache-2.0

/* The image-allow-list plugin lets images come from named registries only and,
 * where it is asked to, only by their digest. */
#include "wasmplane.h"

static wp_value registries;
static int digest;

static const char *configure(wp_value settings) {
    registries = wp_get(settings, "registries");
    digest = wp_bool(wp_get(settings, "digest"));
    for (size_t i = 0; i < wp_len(registries); i++)
        if (!wp_has_suffix(wp_at(registries, i), "/")) return "each of registries ends in a slash, such as registry.example.com/";
    return wp_len(registries) ? 0 : "registries are missing, such as [registry.example.com/]";
}

static int allowed(wp_value image) {
    for (size_t i = 0; i < wp_len(registries); i++)
        if (wp_has_prefix(image, wp_string(wp_at(registries, i)))) return 1;
    return 0;
}

static void decide(wp_input in, wp_answer *out) {
    for (size_t f = 0; f < 3; f++) {
        for (size_t i = 0; i < wp_len(wp_field(in, f)); i++) {
            wp_value image = wp_at(wp_field(in, f), i);
            if (!allowed(image)) wp_deny(out, "image \"%t\" comes from none of the registries that are allowed: %v", image, registries);
            else if (digest && wp_find(image, '@') < 0) wp_deny(out, "image \"%t\" is not pinned by its digest", image);
        }
    }
}

WP_PLUGIN = {
    .name = "image-allow-list", .version = "1.0.0", .settings = configure,
    .validate = {
        .decide = decide,
        .match = {{.operations = {"CREATE", "UPDATE"},
                   .groups = {"", "apps", "batch"},
                   .resources = {"pods", "pods/ephemeralcontainers", "replicationcontrollers", "deployments", "replicasets", "statefulsets", "daemonsets", "jobs", "cronjobs"}}},
        .fields = {"object.@podSpec.containers[*].image", "object.@podSpec.initContainers[*].image", "object.@podSpec.ephemeralContainers[*].image"},
    },
};
