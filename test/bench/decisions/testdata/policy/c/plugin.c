/* The image-policy plugin: see the package's documentation. It reads what it asked for. */
#include "wasmplane.h"

static int pinned(wp_value image) {
    wp_value name = wp_slice(image, (size_t)(wp_find_last(image, '/') + 1), wp_len(image));
    return wp_find(name, '@') >= 0 || (wp_find(name, ':') >= 0 && !wp_has_suffix(name, ":latest"));
}

static int judge(wp_input in, wp_answer *out) {
    for (size_t f = 0; f < 2; f++) {
        wp_value images = wp_field(in, f);
        for (size_t i = 0; i < wp_len(images); i++)
            if (!pinned(wp_at(images, i))) {
                wp_deny(out, "image %t has no fixed tag", wp_at(images, i));
                return 0;
            }
    }
    for (size_t f = 2; f < 4; f++) {
        wp_value rights = wp_field(in, f);
        for (size_t i = 0; i < wp_len(rights); i++)
            if (wp_bool(wp_at(rights, i))) {
                wp_deny(out, "a container is privileged");
                return 0;
            }
    }
    return 1;
}

static void validate(wp_input in, wp_answer *out) { judge(in, out); }

static void mutate(wp_input in, wp_answer *out) {
    if (judge(in, out) && !wp_exists(wp_get(wp_field(in, 4), "checked"))) wp_add(out, "/metadata/labels/checked", "%q", "yes");
}

#define FIELDS                                                                                              \
    "object.spec.containers[*].image", "object.spec.initContainers[*].image",                               \
        "object.spec.containers[*].securityContext.privileged", "object.spec.initContainers[*].securityContext.privileged"
#define PODS {{.operations = {"CREATE"}, .groups = {""}, .resources = {"pods"}}}

WP_PLUGIN = {
    .name = "image-policy", .version = "1.0.0",
    .validate = {.decide = validate, .match = PODS, .fields = {FIELDS}},
    .mutate = {.decide = mutate, .match = PODS, .fields = {FIELDS, "object.metadata.labels"}},
};
