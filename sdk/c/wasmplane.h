// SPDX-License-Identifier: Apache-2.0

/*
 * wasmplane.h: the C SDK for wasmplane plugins, one header without dependencies.
 *
 * A plugin is functions and one table of them:
 *
 *     #include "wasmplane.h"
 *
 *     static void decide(wp_input in, wp_answer *out) {
 *         if (!wp_exists(wp_get(wp_field(in, 0), "owner")))
 *             wp_deny_field(out, "metadata.labels", "name an owner");
 *     }
 *
 *     WP_PLUGIN = {
 *         .name = "my-plugin", .version = "0.1.0",
 *         .validate = {.decide = decide,
 *                      .match  = {{.operations = {"CREATE"}, .groups = {""}, .resources = {"pods"}}},
 *                      .fields = {"object.metadata.labels"}},
 *     };
 *
 * It is built for wasm32 without a C library:
 *
 *     clang --target=wasm32 -O3 -nostdlib -mbulk-memory -Wl,--no-entry -Wl,--stack-first -o my-plugin.wasm my-plugin.c
 *     zig cc -target wasm32-freestanding -O3 -nostdlib -Wl,--no-entry -Wl,--stack-first -o my-plugin.wasm my-plugin.c
 *
 * A plugin of several files defines WP_DECLARATIONS_ONLY before it includes this
 * header in all of them but one.
 *
 * Memory: what an input, a format or a host call gives is valid until the function
 * returns; what is made while settings are passed stays. Nothing is ever freed by hand.
 * One function of a plugin runs at a time.
 *
 * Formats, of messages and of JSON, know:
 *     %s  a C string as it is               %q  a C string as a JSON string
 *     %t  a wp_value's text as it is        %v  a wp_value as JSON
 *     %d  an int                            %D  an int64_t
 *     %k  a C string as a part of a patch's path ("/" and "~" are escaped)
 *     %%  a percent sign
 */
#ifndef WASMPLANE_H
#define WASMPLANE_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

/* ---- Values: views of the input; nothing is copied or parsed. ---- */

/* A value of the input. What is absent answers every function with the empty value. */
typedef struct {
    const uint8_t *base;
    uint64_t cell;
} wp_value;

/* What a hook is asked about: a value with one item for each declared field, or the
 * whole document where none are declared. */
typedef wp_value wp_input;

int wp_exists(wp_value v);       /* whether it is there; null is */
int wp_is_null(wp_value v);      /* whether it is there, and null */
int wp_bool(wp_value v);         /* 1 for true */
int64_t wp_int(wp_value v);      /* an integer, or the whole part of a number */
double wp_float(wp_value v);     /* a number */
size_t wp_len(wp_value v);       /* items of an array, keys of an object, bytes of a string */
const char *wp_chars(wp_value v); /* a string's bytes: wp_len of them, not terminated */
const char *wp_string(wp_value v); /* a string as a terminated copy, "" for everything else */
wp_value wp_at(wp_value v, size_t i);               /* an item of an array */
wp_value wp_get(wp_value v, const char *key);       /* the value of a key of an object */
wp_value wp_get_value(wp_value v, wp_value key);    /* the same, by a key that is a value */
wp_value wp_key(wp_value v, size_t i);              /* the i-th key of an object */
wp_value wp_entry(wp_value v, size_t i);            /* the value of the i-th key */
wp_value wp_field(wp_input in, size_t i);           /* the i-th field that the hook declares */
wp_value wp_path(wp_value v, const char *path);     /* "spec.replicas": by names and dots */

int wp_eq(wp_value v, const char *text);            /* whether it is this string */
int wp_same(wp_value a, wp_value b);                /* whether both are the same string */
int wp_has_prefix(wp_value v, const char *prefix);
int wp_has_suffix(wp_value v, const char *suffix);
int wp_contains(wp_value list, const char *text);   /* whether an array has this string */
ptrdiff_t wp_find(wp_value v, char c);              /* where a character is in a string, -1: nowhere */
ptrdiff_t wp_find_last(wp_value v, char c);
wp_value wp_slice(wp_value v, size_t from, size_t to); /* a part of a string, bounds clipped */

/* Parses JSON; absent where it is none. */
wp_value wp_parse(const char *json, size_t length);

/* Formats; see above. The text is terminated. */
const char *wp_format(const char *format, ...);

/* ---- Answers ---- */

typedef struct {
    char *at;
    size_t length, capacity;
} wp_text;

/* What a hook answers: nothing, so far. */
typedef struct {
    int denied, never;
    int code;
    const char *message, *field, *reason;
    wp_text patch, object, warnings, audit, causes;             /* admission and custom resources */
    wp_text apply, patches, remove, conditions, events, status; /* reconcile */
    int64_t requeue;
    int skip, narrowed, bound; /* scheduling */
    double wait;
    const char *nominated;
    wp_text nodes, evict, reclaim, state, annotations;
} wp_answer;

/* Refuses: a request, a node at filter, a pod at any other step of scheduling. */
void wp_deny(wp_answer *out, const char *format, ...);
/* Refuses because of a field, such as "spec.containers[0].image". */
void wp_deny_field(wp_answer *out, const char *field, const char *format, ...);
/* Refuses because of a field, beside what else is wrong: a user learns of everything at once. */
void wp_cause(wp_answer *out, const char *field, const char *format, ...);
/* Sets the HTTP status of a refusal; 403 otherwise. */
void wp_code(wp_answer *out, int code);
/* Sets the refusal's metav1.StatusReason: "Invalid", "Conflict", ... */
void wp_reason(wp_answer *out, const char *reason);
/* Fails: the entry's failure policy decides, whatever else is answered. out may be null,
 * for hooks that have none (authorize, score, queue_sort, normalize). */
void wp_fail(wp_answer *out, const char *format, ...);
/* Shows a warning to the user. */
void wp_warn(wp_answer *out, const char *format, ...);
/* Adds an annotation to the audit record. */
void wp_audit(wp_answer *out, const char *key, const char *format, ...);

/* Puts a value, as JSON, at a path of the object ("/metadata/labels/team"). What is
 * missing on the way is made; "/spec/containers/[name=web]" finds an item by key. */
void wp_add(wp_answer *out, const char *path, const char *json, ...);
void wp_replace(wp_answer *out, const char *path, const char *json, ...);
void wp_remove(wp_answer *out, const char *path);
void wp_move(wp_answer *out, const char *from, const char *path);
/* Makes the whole patch fail where another value is there. */
void wp_test(wp_answer *out, const char *path, const char *json, ...);
/* Makes the object be as given, in the place of a patch; only a mutating hook that
 * names no fields may. */
void wp_set_object(wp_answer *out, const char *json, ...);

/* A reconciler's plan says what there should be, not what to change: it is carried
 * out again and again. Objects belong to the primary, and go with it. */
void wp_apply(wp_answer *out, const char *json, ...);
void wp_delete(wp_answer *out, const char *api_version, const char *kind, const char *namespace_, const char *name);

/* Names an object. Without a namespace it is in the primary's; with a uid, an object of
 * the same name that is another one is left alone. subresource ("scale") is for patches. For
 * deletions: an object in another state than resource_version is not deleted, and the host calls
 * again; propagation is "Background" (the default), "Foreground" or "Orphan". */
typedef struct {
    const char *api_version, *kind, *namespace_, *name, *uid, *subresource, *resource_version, *propagation;
} wp_target;

/* Changes an object that is not the plugin's to apply as a whole: operations of a JSON
 * patch (RFC 6902), with commas between them, which the API server applies. */
void wp_patch(wp_answer *out, wp_target target, const char *operations, ...);
void wp_delete_target(wp_answer *out, wp_target target);
void wp_status(wp_answer *out, const char *json, ...);
void wp_condition(wp_answer *out, const char *type, const char *status, const char *reason, const char *message);
void wp_event(wp_answer *out, const char *type, const char *reason, const char *format, ...);
void wp_requeue(wp_answer *out, int64_t seconds);

/* ---- Answers of the steps of scheduling ---- */

/* Refuses a node, or at pre_filter all of them, whatever pods leave: nobody is evicted for it. */
void wp_deny_for_good(wp_answer *out, const char *format, ...);
/* Leaves the plugin's filter (after pre_filter) or score (after pre_score) out of this cycle. */
void wp_skip(wp_answer *out);
/* Hands a value, as JSON, to the plugin's later hooks of this cycle, which read it as
 * "state". What an instance keeps in its own memory another does not see. */
void wp_keep(wp_answer *out, const char *json, ...);
/* pre_filter: narrows the search to the nodes that are named, one call for each. */
void wp_only(wp_answer *out, wp_value node);
/* post_filter: the node on which the pod will fit, once pods of lower priority have gone. */
void wp_nominate(wp_answer *out, const char *node);
void wp_evict(wp_answer *out, const char *namespace_, const char *name, const char *uid);
/* An amount of a resource: "milliCPU", "memory", "ephemeralStorage", "pods", or an extended resource. */
typedef struct {
    const char *resource;
    int64_t amount;
} wp_amount;
/* post_filter, for plugins with groups, in place of wp_nominate: lets those pods of a group make room that have
 * no place in what it keeps. The most important ones keep theirs, and of a resource that is not named, all. The host finds
 * out which of them have to go, whole gangs; the pods of a group that is named first rather stay. */
void wp_reclaim(wp_answer *out, const char *group, const wp_amount *keep, size_t count);
/* The same, for the pods of a group whose priority is lower. */
void wp_reclaim_below(wp_answer *out, const char *group, int64_t priority);
/* permit: holds the pod and its place; the hook is asked again within so many seconds, for 15 minutes at most. */
void wp_wait(wp_answer *out, double seconds, const char *format, ...);
/* bind: has the pod bound, with an annotation for each call of wp_annotate. */
void wp_bind(wp_answer *out);
void wp_annotate(wp_answer *out, const char *key, const char *format, ...);

/* An authorizer's answer. */
typedef struct {
    const char *decision, *reason;
} wp_verdict;

#define WP_NO_OPINION ((wp_verdict){0, 0})
wp_verdict wp_allow(const char *format, ...);
wp_verdict wp_refuse(const char *format, ...);

/* What is thought of one node. */
typedef uint8_t wp_judgement;
static inline wp_judgement wp_fits(int64_t score) { return (wp_judgement)(1 + (score < 0 ? 0 : score > 100 ? 100 : score)); }
static inline wp_judgement wp_unfit(int reason) { return (wp_judgement)(128 + (reason & 63)); } /* not now, for a reason by its index */
static inline wp_judgement wp_never(int reason) { return (wp_judgement)(192 + (reason & 63)); } /* whatever pods leave the node */

/* ---- The host ---- */

/* Calls a host function that the operator granted; the input is a format. *failed,
 * where it is not null, is set to 1 where the host refused, and the reply is the message. */
const char *wp_call(const char *function, size_t *length, int *failed, const char *format, ...);
/* The same for functions that reply with JSON; absent where they fail. */
wp_value wp_ask(const char *function, const char *format, ...);
/* Writes a line to the host's log; the plugin needs "log". */
void wp_log(const char *format, ...);

/* Ends the call, and the instance, as a failure. The words are part of the error. */
_Noreturn void wp_panic(const char *words);

/* ---- The plugin ---- */

enum { WP_FIELDS = 32, WP_RULES = 8, WP_NAMES = 16, WP_COLUMNS = 32, WP_REASONS = 16, WP_OWNED = 8, WP_NEEDS = 8, WP_OTHERS = 16, WP_EVENTS = 8, WP_ALIASES = 4, WP_PLACES = 16 };

/* Which requests an admission hook wants to see. What is empty matches everything. */
typedef struct {
    const char *operations[6], *groups[WP_NAMES], *versions[WP_NAMES], *resources[WP_NAMES];
} wp_rule;

/* A name for places that depend on the kind of object: {"@replicas", {{"Deployment", "spec.replicas"},
 * {"*", "spec.size"}}} makes object.@replicas a field. */
typedef struct {
    const char *alias;
    struct {
        const char *kind, *path;
    } places[WP_PLACES];
} wp_alternative;

/* A hook at admission, or at nodeadmission. */
typedef struct {
    void (*decide)(wp_input in, wp_answer *out);
    wp_rule match[WP_RULES];
    const char *fields[WP_FIELDS]; /* none: the whole document */
    wp_alternative alternatives[WP_ALIASES];
    /* What a call changes besides answering, by host functions: "None" (where nothing is said;
     * in a dry run the host keeps them from it), "NoneOnDryRun" (the hook looks at dryRun, too), "Some". */
    const char *side_effects;
} wp_hook;

typedef struct {
    wp_verdict (*decide)(wp_input in);
    const char *fields[WP_FIELDS];
    int pure; /* 1: the answer depends on the fields and the settings only; the host may remember it */
} wp_authorizer;

/* A step of scheduling. pure, of pre_filter, filter and post_filter: the answer depends on the fields and the settings
 * only, so that the host may answer the same question again by itself, and one pod speaks for others like it.
 * events: what may change its mind about a pod that it refused, none: any of them.
 * abi.yaml: begin events
 *   "nodeAdded": a node came
 *   "nodeAllocatableGrew": a node has more to give
 *   "nodeLabelsChanged": a node's labels changed
 *   "nodeTaintsChanged": a node's taints changed
 *   "podRemoved": a pod has gone
 *   "podBound": a pod was bound
 *   "volumesChanged": volumes, claims or classes changed
 *   "podChanged": the pod itself changed
 *   "nodeRemoved": a node was deleted
 * abi.yaml: end events */
typedef struct {
    void (*decide)(wp_input in, wp_answer *out);
    const char *fields[WP_FIELDS], *events[WP_EVENTS];
    int pure;
} wp_step;

typedef struct {
    int64_t (*rate)(wp_input in); /* score: 0 to 100; queue_sort: the highest goes first */
    const char *fields[WP_FIELDS];
} wp_score;

typedef struct {
    /* Changes the plugin's scores of all nodes, in the order of the field nodes. */
    void (*scale)(wp_input in, int64_t *scores, size_t count);
    const char *fields[WP_FIELDS]; /* "scores" is added where it is missing */
} wp_normalize;

/* A column of the node table, or a cell of the pod's row. Types: "int" (an integer or
 * a quantity, rounded up), "milli" (thousandths), "string" (a number that stands for it), "bool" (1
 * for true, or with equals for that string). Empty: "int". */
typedef struct {
    const char *path, *type, *equals;
} wp_column;

typedef struct {
    /* Judges one node; WP_TABLE makes of it the loop over all of them. */
    void (*judge_all)(const int64_t *pod, const int64_t *rows, size_t count, size_t width, wp_judgement *out);
    wp_column columns[WP_COLUMNS], pod[WP_COLUMNS];
    const char *reasons[WP_REASONS], *events[WP_EVENTS];
} wp_table;

/* Makes judge_NAME_all of judge(pod, node): the judge becomes part of the loop. */
#define WP_TABLE(judge)                                                                                      \
    static void judge##_all(const int64_t *pod, const int64_t *rows, size_t count, size_t width, wp_judgement *out) { \
        for (size_t i = 0; i < count; i++) out[i] = judge(pod, rows + i * width);                            \
    }                                                                                                        \
    _Static_assert(1, "")

typedef struct {
    const char *group, *version, *resource, *kind, *selector;
} wp_watch;

typedef struct {
    void (*plan)(wp_input in, wp_answer *out);
    wp_watch primary, owned[WP_OWNED];
    const char *fields[WP_FIELDS];
} wp_reconciler;

/* A hook at any other point: op is a number from 100 on, the answer is JSON by wp_format. */
typedef struct {
    int op;
    const char *point;
    const char *(*answer)(wp_input in);
    const char *fields[WP_FIELDS];
} wp_other;

/* A value that puts pods into a group; several values may be one group. */
typedef struct {
    const char *value, *group;
} wp_group;

/* Groups tell pods apart by what is written in them. The pods of a group have their usage counted, by the host:
 * pre_filter, queue_sort and post_filter read the fields group (its name), usage (of the pod's group), groups (of all, by
 * name), others (of pods in none) and total (what the nodes have). A usage has requested, leaving and promised: amounts,
 * as requests are. With groups, queue_sort ranks groups: pod is the first one of a group that waits. */
typedef struct {
    const char *of; /* pod.metadata.namespace, pod.metadata.labels["..."] or pod.metadata.annotations["..."]; 0: there are no groups */
    const wp_group *names; /* at most 1024, and behind them one without a value: (const wp_group[]){{"red", "a"}, {0}} */
    const char *other; /* the group of pods with another value, or none; 0: they are in no group */
} wp_groups;

typedef struct {
    const char *name, *version;
    /* Takes the entry's settings before anything else; answers 0, or why they are refused. The
     * table WP_PLUGIN may be changed here (fields that depend on the settings). */
    const char *(*settings)(wp_value settings);
    /* A JSON schema of the settings: the host holds an entry's settings against it before the function is called, and
     * names the field that is wrong; 0: there is none. */
    const char *settings_schema;
    const char *needs[WP_NEEDS]; /* host functions that the plugin cannot do without */
    wp_groups groups;

    wp_hook mutate, validate;
    wp_authorizer authorize;
    wp_table table; /* in place of filter and score */
    /* The steps of a pod's cycle. wp_deny holds the pod back; at filter it refuses the node. */
    wp_step pre_enqueue;
    wp_score queue_sort;
    wp_step pre_filter, filter, post_filter, pre_score;
    wp_score score;
    wp_normalize normalize;
    wp_step reserve, unreserve, permit, pre_bind, bind, post_bind;
    wp_reconciler reconcile;
    wp_hook node_admission; /* wp_deny_field(out, "HostNetworkForbidden", ...): the field is the reason, a word in CamelCase */
    /* customresource.convert: brings a custom resource (object) into the version that desiredAPIVersion
     * names, by changes; the object has that apiVersion already. wp_deny fails the conversion. */
    wp_hook convert;
    wp_hook validate_custom; /* customresource.validate: writes that the schema has nothing against */
    wp_other others[WP_OTHERS];
} wp_plugin;

extern wp_plugin wasmplane_plugin;
#define WP_PLUGIN wp_plugin wasmplane_plugin

#ifndef WP_DECLARATIONS_ONLY
/* ==== Implementation ==== */

/* What a compiler makes calls of by itself. Weak: a C library's own go before. */
__attribute__((weak)) void *memcpy(void *restrict to, const void *restrict from, size_t n) {
    char *t = to;
    const char *f = from;
    while (n--) *t++ = *f++;
    return to;
}
__attribute__((weak)) void *memset(void *at, int c, size_t n) {
    char *t = at;
    while (n--) *t++ = (char)c;
    return at;
}

static size_t wp__strlen(const char *s) {
    size_t n = 0;
    while (s && s[n]) n++;
    return n;
}

static int wp__equal(const char *a, const char *b, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (a[i] != b[i]) return 0;
    return 1;
}

/* ---- Memory: it is only ever taken from the end. What a call takes is given back when
 * the next one begins; the floor is what stays. ---- */

extern unsigned char __heap_base;
static uintptr_t wp__floor, wp__top;

static void *wp__take(size_t n) {
    if (!wp__top) wp__floor = wp__top = ((uintptr_t)&__heap_base + 15) & ~(uintptr_t)15;
    uintptr_t at = wp__top;
    if (n > (size_t)1 << 30) return 0;
    uintptr_t end = at + ((n + 7) & ~(size_t)7);
    uintptr_t have = (uintptr_t)__builtin_wasm_memory_size(0) << 16;
    if (end > have && __builtin_wasm_memory_grow(0, (end - have + 0xffff) >> 16) == (size_t)-1) return 0;
    wp__top = end;
    return (void *)at;
}

/* Memory without which nothing goes on. */
static void *wp__need(size_t n) {
    void *at = wp__take(n);
    if (!at) __builtin_trap();
    return at;
}

static void wp__grow(wp_text *t, size_t more) {
    if (t->length + more <= t->capacity) return;
    size_t capacity = t->capacity * 2 + more + 64;
    if (t->at && (uintptr_t)t->at + ((t->capacity + 7) & ~(size_t)7) == wp__top) {
        wp__top = (uintptr_t)t->at; /* it is the last: it grows where it is */
        wp__need(capacity);
    } else {
        char *at = wp__need(capacity);
        if (t->length) memcpy(at, t->at, t->length);
        t->at = at;
    }
    t->capacity = capacity;
}

static void wp__put(wp_text *t, const char *s, size_t n) {
    wp__grow(t, n);
    if (n) memcpy(t->at + t->length, s, n);
    t->length += n;
}

static void wp__char(wp_text *t, char c) { wp__put(t, &c, 1); }
static void wp__str(wp_text *t, const char *s) { wp__put(t, s, wp__strlen(s)); }

/* ---- Values ---- */

enum { WP__NULL, WP__FALSE, WP__TRUE, WP__INT, WP__FLOAT, WP__STRING, WP__ARRAY, WP__OBJECT, WP__ABSENT };
static const wp_value wp__absent = {0, (uint64_t)WP__ABSENT << 60};

static int wp__kind(wp_value v) { return v.base ? (int)(v.cell >> 60) : WP__ABSENT; }
static size_t wp__length(wp_value v) { return (size_t)(v.cell >> 32) & 0xfffffff; }
static const uint8_t *wp__data(wp_value v) { return v.base + (uint32_t)v.cell; }
static wp_value wp__cell(wp_value v, size_t i) { return (wp_value){v.base, ((const uint64_t *)(const void *)wp__data(v))[i]}; }
static wp_value wp__make(int kind, size_t length, const void *at) {
    const uint8_t *base = &__heap_base;
    return (wp_value){base, (uint64_t)kind << 60 | (uint64_t)length << 32 | (uint32_t)((const uint8_t *)at - base)};
}

int wp_exists(wp_value v) { return wp__kind(v) != WP__ABSENT; }
int wp_is_null(wp_value v) { return wp__kind(v) == WP__NULL; }
int wp_bool(wp_value v) { return wp__kind(v) == WP__TRUE; }

int64_t wp_int(wp_value v) {
    if (wp__kind(v) == WP__INT) return *(const int64_t *)(const void *)wp__data(v);
    return (int64_t)wp_float(v);
}

double wp_float(wp_value v) {
    if (wp__kind(v) == WP__INT) return (double)wp_int(v);
    return wp__kind(v) == WP__FLOAT ? *(const double *)(const void *)wp__data(v) : 0;
}

size_t wp_len(wp_value v) {
    int k = wp__kind(v);
    return k == WP__STRING || k == WP__ARRAY || k == WP__OBJECT ? wp__length(v) : 0;
}

const char *wp_chars(wp_value v) { return wp__kind(v) == WP__STRING ? (const char *)wp__data(v) : ""; }

const char *wp_string(wp_value v) {
    size_t n = wp__kind(v) == WP__STRING ? wp__length(v) : 0;
    char *s = wp__need(n + 1);
    if (n) memcpy(s, wp_chars(v), n);
    s[n] = 0;
    return s;
}

wp_value wp_at(wp_value v, size_t i) { return wp__kind(v) == WP__ARRAY && i < wp__length(v) ? wp__cell(v, i) : wp__absent; }
wp_value wp_field(wp_input in, size_t i) { return wp_at(in, i); }
wp_value wp_key(wp_value v, size_t i) { return wp__kind(v) == WP__OBJECT && i < wp__length(v) ? wp__cell(v, 2 * i) : wp__absent; }
wp_value wp_entry(wp_value v, size_t i) { return wp__kind(v) == WP__OBJECT && i < wp__length(v) ? wp__cell(v, 2 * i + 1) : wp__absent; }

static int wp__is(wp_value v, const char *text, size_t n) {
    return wp__kind(v) == WP__STRING && wp__length(v) == n && wp__equal((const char *)wp__data(v), text, n);
}

static wp_value wp__find_key(wp_value v, const char *key, size_t n) {
    if (wp__kind(v) == WP__OBJECT)
        for (size_t i = 0; i < wp__length(v); i++)
            if (wp__is(wp__cell(v, 2 * i), key, n)) return wp__cell(v, 2 * i + 1);
    return wp__absent;
}

wp_value wp_get(wp_value v, const char *key) { return wp__find_key(v, key, wp__strlen(key)); }
wp_value wp_get_value(wp_value v, wp_value key) { return wp__find_key(v, wp_chars(key), wp_len(key)); }

wp_value wp_path(wp_value v, const char *path) {
    for (;;) {
        size_t n = 0;
        while (path[n] && path[n] != '.') n++;
        v = wp__find_key(v, path, n);
        if (!path[n]) return v;
        path += n + 1;
    }
}

int wp_eq(wp_value v, const char *text) { return wp__is(v, text, wp__strlen(text)); }
int wp_same(wp_value a, wp_value b) { return wp__kind(b) == WP__STRING && wp__is(a, (const char *)wp__data(b), wp__length(b)); }

int wp_has_prefix(wp_value v, const char *prefix) {
    size_t n = wp__strlen(prefix);
    return wp__kind(v) == WP__STRING && wp__length(v) >= n && wp__equal(wp_chars(v), prefix, n);
}

int wp_has_suffix(wp_value v, const char *suffix) {
    size_t n = wp__strlen(suffix);
    return wp__kind(v) == WP__STRING && wp__length(v) >= n && wp__equal(wp_chars(v) + wp__length(v) - n, suffix, n);
}

int wp_contains(wp_value list, const char *text) {
    for (size_t i = 0; i < wp_len(list); i++)
        if (wp_eq(wp_at(list, i), text)) return 1;
    return 0;
}

ptrdiff_t wp_find(wp_value v, char c) {
    if (wp__kind(v) == WP__STRING)
        for (size_t i = 0; i < wp__length(v); i++)
            if (wp_chars(v)[i] == c) return (ptrdiff_t)i;
    return -1;
}

ptrdiff_t wp_find_last(wp_value v, char c) {
    if (wp__kind(v) == WP__STRING)
        for (size_t i = wp__length(v); i-- > 0;)
            if (wp_chars(v)[i] == c) return (ptrdiff_t)i;
    return -1;
}

wp_value wp_slice(wp_value v, size_t from, size_t to) {
    if (wp__kind(v) != WP__STRING) return wp__absent;
    if (to > wp__length(v)) to = wp__length(v);
    if (from > to) from = to;
    return (wp_value){v.base, (uint64_t)WP__STRING << 60 | (uint64_t)(to - from) << 32 | ((uint32_t)v.cell + (uint32_t)from)};
}

/* ---- Writing ---- */

static void wp__quoted(wp_text *t, const char *s, size_t n) {
    static const char hex[] = "0123456789abcdef";
    wp__char(t, '"');
    size_t start = 0;
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)s[i];
        if (c >= 0x20 && c != '"' && c != '\\') continue;
        wp__put(t, s + start, i - start);
        start = i + 1;
        char escape[6] = {'\\', 'u', '0', '0', hex[c >> 4], hex[c & 15]};
        if (c == '"' || c == '\\') {
            escape[1] = (char)c;
            wp__put(t, escape, 2);
        } else {
            wp__put(t, escape, 6);
        }
    }
    wp__put(t, s + start, n - start);
    wp__char(t, '"');
}

static void wp__integer(wp_text *t, int64_t v) {
    char digits[20];
    size_t n = sizeof digits;
    uint64_t u = v < 0 ? 0 - (uint64_t)v : (uint64_t)v;
    do digits[--n] = (char)('0' + u % 10);
    while (u /= 10);
    if (v < 0) wp__char(t, '-');
    wp__put(t, digits + n, sizeof digits - n);
}

/* fifteen significant digits, which is what a decimal number keeps in a double. */
static void wp__number(wp_text *t, double v) {
    if (v != v || v - v != 0) {
        wp__str(t, "null");
        return;
    }
    if (v < 0) {
        wp__char(t, '-');
        v = -v;
    }
    if (v < 1e15 && v == (double)(int64_t)v) {
        wp__integer(t, (int64_t)v);
        return;
    }
    int exponent = 0;
    while (v >= 1e15) v /= 10, exponent++;
    while (v < 1e14) v *= 10, exponent--;
    int64_t digits = (int64_t)(v + 0.5);
    while (digits % 10 == 0) digits /= 10, exponent++;
    wp__integer(t, digits);
    if (exponent) {
        wp__char(t, 'e');
        wp__integer(t, exponent);
    }
}

static void wp__value(wp_text *t, wp_value v) {
    switch (wp__kind(v)) {
    case WP__FALSE: wp__str(t, "false"); break;
    case WP__TRUE: wp__str(t, "true"); break;
    case WP__INT: wp__integer(t, wp_int(v)); break;
    case WP__FLOAT: wp__number(t, wp_float(v)); break;
    case WP__STRING: wp__quoted(t, wp_chars(v), wp_len(v)); break;
    case WP__ARRAY:
    case WP__OBJECT: {
        int object = wp__kind(v) == WP__OBJECT;
        wp__char(t, object ? '{' : '[');
        for (size_t i = 0; i < wp_len(v); i++) {
            if (i) wp__char(t, ',');
            if (object) {
                wp__value(t, wp_key(v, i));
                wp__char(t, ':');
            }
            wp__value(t, object ? wp_entry(v, i) : wp_at(v, i));
        }
        wp__char(t, object ? '}' : ']');
        break;
    }
    default: wp__str(t, "null");
    }
}

static void wp__format(wp_text *t, const char *f, va_list args) {
    for (; *f; f++) {
        size_t n = 0;
        while (f[n] && f[n] != '%') n++;
        wp__put(t, f, n);
        f += n;
        if (!*f) return;
        switch (*++f) {
        case 's': wp__str(t, va_arg(args, const char *)); break;
        case 'q': {
            const char *s = va_arg(args, const char *);
            wp__quoted(t, s, wp__strlen(s));
            break;
        }
        case 'k':
            for (const char *s = va_arg(args, const char *); s && *s; s++) {
                if (*s == '~' || *s == '/') wp__put(t, *s == '~' ? "~0" : "~1", 2);
                else wp__char(t, *s);
            }
            break;
        case 'v': wp__value(t, va_arg(args, wp_value)); break;
        case 't': {
            wp_value v = va_arg(args, wp_value);
            if (wp__kind(v) == WP__STRING) wp__put(t, wp_chars(v), wp_len(v));
            else if (wp_exists(v)) wp__value(t, v);
            break;
        }
        case 'd': wp__integer(t, va_arg(args, int)); break;
        case 'D': wp__integer(t, va_arg(args, int64_t)); break;
        case '%': wp__char(t, '%'); break;
        default: __builtin_trap(); /* a directive that does not exist: the arguments cannot be told apart any more */
        }
    }
}

static const char *wp__formatted(const char *format, va_list args) {
    wp_text t = {0};
    wp__format(&t, format, args);
    wp__char(&t, 0);
    return t.at;
}

#define WP__FORMATTED(name)                        \
    va_list args;                                  \
    va_start(args, format);                        \
    const char *name = wp__formatted(format, args); \
    va_end(args)

const char *wp_format(const char *format, ...) {
    WP__FORMATTED(text);
    return text;
}

/* ---- Answers ---- */

static void wp__more(wp_text *t) {
    if (t->length) wp__char(t, ',');
}

static void wp__print(wp_text *t, const char *format, ...) {
    va_list args;
    va_start(args, format);
    wp__format(t, format, args);
    va_end(args);
}

void wp_deny(wp_answer *out, const char *format, ...) {
    WP__FORMATTED(message);
    out->denied = 1;
    out->message = message;
}

void wp_deny_field(wp_answer *out, const char *field, const char *format, ...) {
    WP__FORMATTED(message);
    out->denied = 1;
    out->field = field;
    out->message = message;
}

void wp_cause(wp_answer *out, const char *field, const char *format, ...) {
    WP__FORMATTED(message);
    out->denied = 1;
    if (!out->message) out->message = "";
    wp__more(&out->causes);
    wp__print(&out->causes, "{\"field\":%q,\"message\":%q}", field, message);
}

void wp_code(wp_answer *out, int code) { out->code = code; }

void wp_reason(wp_answer *out, const char *reason) { out->reason = reason; }

static const char *wp__failure; /* why the call that runs fails, once it is known */

void wp_fail(wp_answer *out, const char *format, ...) {
    WP__FORMATTED(message);
    (void)out;
    wp__failure = message;
}

void wp_warn(wp_answer *out, const char *format, ...) {
    WP__FORMATTED(text);
    wp__more(&out->warnings);
    wp__print(&out->warnings, "%q", text);
}

void wp_audit(wp_answer *out, const char *key, const char *format, ...) {
    WP__FORMATTED(text);
    wp__more(&out->audit);
    wp__print(&out->audit, "%q:%q", key, text);
}

void wp_add(wp_answer *out, const char *path, const char *format, ...) {
    WP__FORMATTED(value);
    wp__more(&out->patch);
    wp__print(&out->patch, "{\"op\":\"add\",\"path\":%q,\"value\":%s}", path, value);
}

void wp_replace(wp_answer *out, const char *path, const char *format, ...) {
    WP__FORMATTED(value);
    wp__more(&out->patch);
    wp__print(&out->patch, "{\"op\":\"replace\",\"path\":%q,\"value\":%s}", path, value);
}

void wp_remove(wp_answer *out, const char *path) {
    wp__more(&out->patch);
    wp__print(&out->patch, "{\"op\":\"remove\",\"path\":%q}", path);
}

void wp_move(wp_answer *out, const char *from, const char *path) {
    wp__more(&out->patch);
    wp__print(&out->patch, "{\"op\":\"move\",\"from\":%q,\"path\":%q}", from, path);
}

void wp_test(wp_answer *out, const char *path, const char *format, ...) {
    WP__FORMATTED(value);
    wp__more(&out->patch);
    wp__print(&out->patch, "{\"op\":\"test\",\"path\":%q,\"value\":%s}", path, value);
}

void wp_set_object(wp_answer *out, const char *format, ...) {
    WP__FORMATTED(object);
    out->object = (wp_text){0};
    wp__str(&out->object, object);
}

static void wp__target(wp_text *t, const wp_target *o) {
    wp__print(t, "{\"apiVersion\":%q,\"kind\":%q,\"name\":%q", o->api_version, o->kind, o->name);
    if (o->namespace_) wp__print(t, ",\"namespace\":%q", o->namespace_);
    if (o->uid) wp__print(t, ",\"uid\":%q", o->uid);
    if (o->subresource) wp__print(t, ",\"subresource\":%q", o->subresource);
    if (o->resource_version) wp__print(t, ",\"resourceVersion\":%q", o->resource_version);
    if (o->propagation) wp__print(t, ",\"propagationPolicy\":%q", o->propagation);
}

void wp_patch(wp_answer *out, wp_target target, const char *format, ...) {
    WP__FORMATTED(operations);
    wp__more(&out->patches);
    wp__target(&out->patches, &target);
    wp__print(&out->patches, ",\"patch\":[%s]}", operations);
}

void wp_delete_target(wp_answer *out, wp_target target) {
    wp__more(&out->remove);
    wp__target(&out->remove, &target);
    wp__char(&out->remove, '}');
}

void wp_deny_for_good(wp_answer *out, const char *format, ...) {
    WP__FORMATTED(message);
    out->denied = out->never = 1;
    out->message = message;
}

void wp_skip(wp_answer *out) { out->skip = 1; }

void wp_keep(wp_answer *out, const char *format, ...) {
    WP__FORMATTED(state);
    out->state = (wp_text){0};
    wp__str(&out->state, state);
}

void wp_only(wp_answer *out, wp_value node) {
    out->narrowed = 1;
    if (!wp_len(node)) return;
    wp__more(&out->nodes);
    wp__print(&out->nodes, "%v", node);
}

void wp_nominate(wp_answer *out, const char *node) { out->nominated = node; }

void wp_evict(wp_answer *out, const char *namespace_, const char *name, const char *uid) {
    wp__more(&out->evict);
    wp__print(&out->evict, "{\"namespace\":%q,\"name\":%q,\"uid\":%q}", namespace_, name, uid ? uid : "");
}

static void wp__amounts(wp_text *t, const wp_amount *list, size_t count, int scalar) {
    static const char *const names[] = {"milliCPU", "memory", "ephemeralStorage", "pods"};
    int first = 1;
    for (size_t i = 0; i < count; i++) {
        size_t n = wp__strlen(list[i].resource);
        int own = 0;
        for (size_t j = 0; j < 4; j++) own |= n == wp__strlen(names[j]) && wp__equal(list[i].resource, names[j], n);
        if (own == scalar) continue;
        wp__print(t, "%s%q:%D", first ? "" : ",", list[i].resource, list[i].amount);
        first = 0;
    }
    if (scalar) return;
    wp__str(t, first ? "\"scalar\":{" : ",\"scalar\":{");
    wp__amounts(t, list, count, 1);
    wp__char(t, '}');
}

void wp_reclaim(wp_answer *out, const char *group, const wp_amount *keep, size_t count) {
    wp__more(&out->reclaim);
    wp__print(&out->reclaim, "{\"group\":%q,\"keep\":{", group);
    wp__amounts(&out->reclaim, keep, count, 0);
    wp__str(&out->reclaim, "}}");
}

void wp_reclaim_below(wp_answer *out, const char *group, int64_t priority) {
    wp__more(&out->reclaim);
    wp__print(&out->reclaim, "{\"group\":%q,\"below\":%D}", group, priority);
}

void wp_wait(wp_answer *out, double seconds, const char *format, ...) {
    WP__FORMATTED(message);
    out->wait = seconds;
    out->message = message;
}

void wp_bind(wp_answer *out) { out->bound = 1; }

void wp_annotate(wp_answer *out, const char *key, const char *format, ...) {
    WP__FORMATTED(value);
    out->bound = 1;
    wp__more(&out->annotations);
    wp__print(&out->annotations, "%q:%q", key, value);
}

void wp_apply(wp_answer *out, const char *format, ...) {
    WP__FORMATTED(object);
    wp__more(&out->apply);
    wp__str(&out->apply, object);
}

void wp_delete(wp_answer *out, const char *api_version, const char *kind, const char *namespace_, const char *name) {
    wp__more(&out->remove);
    wp__print(&out->remove, "{\"apiVersion\":%q,\"kind\":%q,\"namespace\":%q,\"name\":%q}", api_version, kind, namespace_, name);
}

void wp_status(wp_answer *out, const char *format, ...) {
    WP__FORMATTED(status);
    out->status = (wp_text){0};
    wp__str(&out->status, status);
}

void wp_condition(wp_answer *out, const char *type, const char *status, const char *reason, const char *message) {
    wp__more(&out->conditions);
    wp__print(&out->conditions, "{\"type\":%q,\"status\":%q,\"reason\":%q,\"message\":%q}", type, status, reason, message);
}

void wp_event(wp_answer *out, const char *type, const char *reason, const char *format, ...) {
    WP__FORMATTED(message);
    wp__more(&out->events);
    wp__print(&out->events, "{\"type\":%q,\"reason\":%q,\"message\":%q}", type, reason, message);
}

void wp_requeue(wp_answer *out, int64_t seconds) { out->requeue = seconds; }

wp_verdict wp_allow(const char *format, ...) {
    WP__FORMATTED(reason);
    return (wp_verdict){"allow", reason};
}

wp_verdict wp_refuse(const char *format, ...) {
    WP__FORMATTED(reason);
    return (wp_verdict){"deny", reason};
}

/* ---- Parsing: JSON becomes cells, so that it is read like an input. ---- */

typedef struct {
    const char *at, *end;
    wp_text stack; /* cells of the arrays and objects that are open */
    int failed;
} wp__parser;

static void wp__space(wp__parser *p) {
    while (p->at < p->end && (*p->at == ' ' || *p->at == '\t' || *p->at == '\r' || *p->at == '\n')) p->at++;
}

static int wp__next(wp__parser *p, char c) {
    wp__space(p);
    if (p->at >= p->end || *p->at != c) return 0;
    p->at++;
    return 1;
}

static unsigned wp__hex(wp__parser *p) {
    unsigned v = 0;
    for (int i = 0; i < 4; i++, p->at++) {
        char c = p->at < p->end ? *p->at : 0;
        unsigned d = c >= '0' && c <= '9' ? (unsigned)(c - '0') : c >= 'a' && c <= 'f' ? (unsigned)(c - 'a' + 10) : c >= 'A' && c <= 'F' ? (unsigned)(c - 'A' + 10) : 16;
        if (d == 16) {
            p->failed = 1;
            return 0;
        }
        v = v << 4 | d;
    }
    return v;
}

static void wp__utf8(wp_text *t, unsigned r) {
    if (r < 0x80) {
        wp__char(t, (char)r);
        return;
    }
    if (r < 0x800) {
        wp__char(t, (char)(0xc0 | r >> 6));
    } else {
        if (r < 0x10000) {
            wp__char(t, (char)(0xe0 | r >> 12));
        } else {
            wp__char(t, (char)(0xf0 | r >> 18));
            wp__char(t, (char)(0x80 | (r >> 12 & 63)));
        }
        wp__char(t, (char)(0x80 | (r >> 6 & 63)));
    }
    wp__char(t, (char)(0x80 | (r & 63)));
}

static unsigned wp__rune(wp__parser *p) {
    unsigned r = wp__hex(p);
    if (r >= 0xd800 && r < 0xe000) {
        if (r < 0xdc00 && p->end - p->at >= 6 && p->at[0] == '\\' && p->at[1] == 'u') {
            p->at += 2;
            unsigned low = wp__hex(p);
            if (low >= 0xdc00 && low < 0xe000) return 0x10000 + ((r - 0xd800) << 10 | (low - 0xdc00));
        }
        return 0xfffd;
    }
    return r;
}

static wp_value wp__parse_string(wp__parser *p) {
    wp_text t = {0};
    wp__grow(&t, 1);
    for (;;) {
        const char *start = p->at;
        while (p->at < p->end && *p->at != '"' && *p->at != '\\') p->at++;
        wp__put(&t, start, (size_t)(p->at - start));
        if (p->at >= p->end || (*p->at == '\\' && p->at + 1 >= p->end)) {
            p->failed = 1;
            return wp__absent;
        }
        if (*p->at++ == '"') return wp__make(WP__STRING, t.length, t.at);
        char c = *p->at++;
        switch (c) {
        case 'n': wp__char(&t, '\n'); break;
        case 't': wp__char(&t, '\t'); break;
        case 'r': wp__char(&t, '\r'); break;
        case 'b': wp__char(&t, '\b'); break;
        case 'f': wp__char(&t, '\f'); break;
        case 'u': wp__utf8(&t, wp__rune(p)); break;
        case '"': case '\\': case '/': wp__char(&t, c); break;
        default: p->failed = 1; return wp__absent;
        }
    }
}

static wp_value wp__parse_number(wp__parser *p) {
    const char *start = p->at;
    int negative = *p->at == '-', whole = 1, digits = 0, exponent = 0;
    if (negative) p->at++;
    uint64_t mantissa = 0;
    for (; p->at < p->end; p->at++) {
        if (*p->at == '.' && whole) {
            whole = 0;
            continue;
        }
        if (*p->at < '0' || *p->at > '9') break;
        digits++;
        if (mantissa < 100000000000000000u) {
            mantissa = mantissa * 10 + (uint64_t)(*p->at - '0');
            exponent -= !whole;
        } else {
            if (whole && exponent == 0 && mantissa <= 922337203685477579u) { /* the nineteenth digit of an integer */
                mantissa = mantissa * 10 + (uint64_t)(*p->at - '0');
            } else {
                exponent += whole;
            }
        }
    }
    if (!digits) p->failed = 1;
    if (p->at < p->end && (*p->at == 'e' || *p->at == 'E')) {
        whole = 0;
        int sign = 1, e = 0;
        p->at++;
        if (p->at < p->end && (*p->at == '+' || *p->at == '-')) sign = *p->at++ == '-' ? -1 : 1;
        if (p->at >= p->end || *p->at < '0' || *p->at > '9') p->failed = 1;
        for (; p->at < p->end && *p->at >= '0' && *p->at <= '9'; p->at++)
            if (e < 10000) e = e * 10 + (*p->at - '0');
        exponent += sign * e;
    }
    (void)start;
    if (whole && exponent == 0 && mantissa <= INT64_MAX) {
        int64_t *at = wp__need(8);
        *at = negative ? -(int64_t)mantissa : (int64_t)mantissa;
        return wp__make(WP__INT, 8, at);
    }
    double v = (double)mantissa, scale = 1, ten = 10;
    for (int e = exponent < 0 ? -exponent : exponent; e; e >>= 1, ten *= ten)
        if (e & 1) scale *= ten;
    v = exponent < 0 ? v / scale : v * scale;
    double *at = wp__need(8);
    *at = negative ? -v : v;
    return wp__make(WP__FLOAT, 8, at);
}

static wp_value wp__parse_value(wp__parser *p, int depth);

static wp_value wp__parse_list(wp__parser *p, int depth, int object) {
    size_t from = p->stack.length, n = 0;
    char close = object ? '}' : ']';
    p->at++;
    if (!wp__next(p, close)) {
        do {
            if (object) {
                wp__space(p);
                if (p->at >= p->end || *p->at++ != '"') p->failed = 1;
                if (p->failed) return wp__absent;
                wp_value key = wp__parse_string(p);
                wp__put(&p->stack, (const char *)&key.cell, 8);
                if (!wp__next(p, ':')) p->failed = 1;
            }
            wp_value v = wp__parse_value(p, depth + 1);
            if (p->failed) return wp__absent;
            wp__put(&p->stack, (const char *)&v.cell, 8);
            n++;
        } while (wp__next(p, ','));
        if (!wp__next(p, close)) p->failed = 1;
    }
    size_t bytes = p->stack.length - from;
    uint64_t *cells = wp__need(bytes + 8);
    if (bytes) memcpy(cells, p->stack.at + from, bytes);
    p->stack.length = from;
    return wp__make(object ? WP__OBJECT : WP__ARRAY, n, cells);
}

static wp_value wp__parse_value(wp__parser *p, int depth) {
    static const struct { const char *text; int kind; } words[] = {{"true", WP__TRUE}, {"false", WP__FALSE}, {"null", WP__NULL}};
    wp__space(p);
    if (p->at >= p->end || depth > 100) {
        p->failed = 1;
        return wp__absent;
    }
    switch (*p->at) {
    case '{': return wp__parse_list(p, depth, 1);
    case '[': return wp__parse_list(p, depth, 0);
    case '"': p->at++; return wp__parse_string(p);
    }
    for (int i = 0; i < 3; i++) {
        size_t n = wp__strlen(words[i].text);
        if ((size_t)(p->end - p->at) >= n && wp__equal(p->at, words[i].text, n)) {
            p->at += n;
            return wp__make(words[i].kind, 0, &__heap_base);
        }
    }
    return wp__parse_number(p);
}

wp_value wp_parse(const char *json, size_t length) {
    wp__parser p = {json, json + length, {0}, 0};
    wp_value v = wp__parse_value(&p, 0);
    wp__space(&p);
    return p.failed || p.at != p.end ? wp__absent : v;
}

/* ---- The host ---- */

#ifdef WASMPLANE_COMPONENT
/* The imports of the world in sdk/wit/built.wit, as the component model's canonical ABI has them. */
__attribute__((import_module("wasmplane:plugin/host@1.0.0"), import_name("call")))
extern void wp__host_call(const char *op, size_t op_length, const char *in, size_t in_length, uint32_t *place);
__attribute__((import_module("wasi:cli/stderr@0.2.0"), import_name("get-stderr")))
extern int32_t wp__stderr(void);
__attribute__((import_module("wasi:io/streams@0.2.0"), import_name("[method]output-stream.blocking-write-and-flush")))
extern void wp__write(int32_t stream, const char *at, size_t length, uint32_t *place);

_Noreturn void wp_panic(const char *words) {
    int32_t stream = wp__stderr();
    const char *text[] = {"panic: ", words, "\n"};
    uint32_t place[3]; /* a result: nothing, or why not, which nobody could be told */
    for (int i = 0; i < 3; i++) wp__write(stream, text[i], wp__strlen(text[i]), place);
    __builtin_trap();
}

static int wp__asking; /* what the host wants memory for is a reply */

static const char *wp__ask_host(const char *function, size_t *length, int *failed, const char *input) {
    uint32_t place[4]; /* a result: a list, or a variant with a text */
    wp__asking = 1;
    wp__host_call(function, wp__strlen(function), input, wp__strlen(input), place);
    wp__asking = 0;
    *failed = (place[0] & 0xff) != 0;
    const uint32_t *reply = *failed ? place + 2 : place + 1;
    *length = reply[1];
    return reply[1] ? (const char *)(uintptr_t)reply[0] : ""; /* cabi_realloc has ended it with a zero */
}
#else
__attribute__((import_module("wasmplane"), import_name("call")))
extern int64_t wp__host_call(const char *op, size_t op_length, const char *in, size_t in_length, char *out, size_t out_capacity);

struct wp__vector {
    const char *at;
    size_t length;
};

__attribute__((import_module("wasi_snapshot_preview1"), import_name("fd_write")))
extern int wp__fd_write(int fd, const struct wp__vector *vectors, size_t count, size_t *written);

_Noreturn void wp_panic(const char *words) {
    struct wp__vector text[] = {{"panic: ", 7}, {words, wp__strlen(words)}, {"\n", 1}};
    size_t written;
    (void)wp__fd_write(2, text, 3, &written);
    __builtin_trap();
}

static const char *wp__ask_host(const char *function, size_t *length, int *failed, const char *input) {
    size_t capacity = 1024;
    char *out = wp__need(capacity + 1);
    int64_t n = wp__host_call(function, wp__strlen(function), input, wp__strlen(input), out, capacity);
    *failed = n < 0;
    if (n < 0 || (uint64_t)n > capacity) { /* an empty name gives the last reply again, and its length */
        n = wp__host_call("", 0, "", 0, 0, 0);
        out = wp__need((size_t)n + 1);
        n = wp__host_call("", 0, "", 0, out, (size_t)n);
    }
    out[n] = 0;
    *length = (size_t)n;
    return out;
}
#endif /* WASMPLANE_COMPONENT */

const char *wp_call(const char *function, size_t *length, int *failed, const char *format, ...) {
    WP__FORMATTED(input);
    size_t n;
    int f;
    const char *reply = wp__ask_host(function, &n, &f, input);
    if (length) *length = n;
    if (failed) *failed = f;
    return reply;
}

wp_value wp_ask(const char *function, const char *format, ...) {
    WP__FORMATTED(input);
    size_t n;
    int failed;
    const char *reply = wp__ask_host(function, &n, &failed, input);
    return failed ? wp__absent : wp_parse(reply, n);
}

void wp_log(const char *format, ...) {
    WP__FORMATTED(message);
    size_t n;
    int failed;
    wp__ask_host("log", &n, &failed, wp_format("{\"level\":\"INFO\",\"message\":%q}", message)); /* a log that is not granted is no failure */
}

/* ---- The module's exports ---- */

/* abi.yaml: begin operations */
enum {
    WP__SETTINGS = 0,
    WP__MUTATE = 1,
    WP__VALIDATE = 2,
    WP__AUTHORIZE = 3,
    WP__FILTER = 4,
    WP__SCORE = 5,
    WP__TABLE = 6,
    WP__RECONCILE = 7,
    WP__NODE_ADMISSION = 8,
    WP__CONVERT = 9,
    WP__VALIDATE_CUSTOM = 10,
    WP__PRE_ENQUEUE = 11,
    WP__QUEUE_SORT = 12,
    WP__PRE_FILTER = 13,
    WP__POST_FILTER = 14,
    WP__PRE_SCORE = 15,
    WP__NORMALIZE = 16,
    WP__RESERVE = 17,
    WP__UNRESERVE = 18,
    WP__PERMIT = 19,
    WP__PRE_BIND = 20,
    WP__BIND = 21,
    WP__POST_BIND = 22,
};

static const char *wp__point(int op) {
    switch (op) {
    case WP__MUTATE: return "admission.mutate";
    case WP__VALIDATE: return "admission.validate";
    case WP__AUTHORIZE: return "authorization";
    case WP__FILTER: return "scheduling.filter";
    case WP__SCORE: return "scheduling.score";
    case WP__TABLE: return "scheduling.table";
    case WP__RECONCILE: return "reconcile";
    case WP__NODE_ADMISSION: return "nodeadmission";
    case WP__CONVERT: return "customresource.convert";
    case WP__VALIDATE_CUSTOM: return "customresource.validate";
    case WP__PRE_ENQUEUE: return "scheduling.preEnqueue";
    case WP__QUEUE_SORT: return "scheduling.queueSort";
    case WP__PRE_FILTER: return "scheduling.preFilter";
    case WP__POST_FILTER: return "scheduling.postFilter";
    case WP__PRE_SCORE: return "scheduling.preScore";
    case WP__NORMALIZE: return "scheduling.normalize";
    case WP__RESERVE: return "scheduling.reserve";
    case WP__UNRESERVE: return "scheduling.unreserve";
    case WP__PERMIT: return "scheduling.permit";
    case WP__PRE_BIND: return "scheduling.preBind";
    case WP__BIND: return "scheduling.bind";
    case WP__POST_BIND: return "scheduling.postBind";
    default: return "";
    }
}
/* abi.yaml: end operations */

static int64_t *wp__rows;
static size_t wp__row_capacity;
static uintptr_t wp__input_at;

static int64_t wp__give(const char *at, size_t n, int failed) {
    return (int64_t)((uint64_t)(uintptr_t)at << 32 | n | (failed ? (uint64_t)1 << 31 : 0));
}

static int64_t wp__error(const char *message) { return wp__give(message, wp__strlen(message), 1); }

static void wp__strings(wp_text *t, const char *const *list, size_t most) {
    wp__char(t, '[');
    for (size_t i = 0; i < most && list[i]; i++) wp__print(t, i ? ",%q" : "%q", list[i]);
    wp__char(t, ']');
}

static void wp__columns(wp_text *t, const wp_column *list) {
    wp__char(t, '[');
    for (size_t i = 0; i < WP_COLUMNS && list[i].path; i++) {
        wp__print(t, "%s{\"path\":%q,\"type\":%q", i ? "," : "", list[i].path, list[i].type ? list[i].type : "int");
        if (list[i].equals) wp__print(t, ",\"equals\":%q", list[i].equals);
        wp__char(t, '}');
    }
    wp__char(t, ']');
}

static void wp__watch(wp_text *t, const wp_watch *w) {
    wp__print(t, "{\"group\":%q,\"version\":%q,\"resource\":%q,\"kind\":%q,\"selector\":%q}", w->group, w->version, w->resource, w->kind, w->selector);
}

/* begins a hook; its fields follow, and whoever began it closes it. */
static void wp__hook(wp_text *t, int op, const char *point, const char *const *fields) {
    wp__print(t, "%s{\"op\":%d,\"point\":%q,\"encoding\":\"flat\",\"fields\":", t->at[t->length - 1] == '[' ? "" : ",", op, point);
    wp__strings(t, fields, WP_FIELDS);
}

static void wp__admission(wp_text *t, int op, const char *point, const wp_hook *h) {
    if (!h->decide) return;
    wp__hook(t, op, point, h->fields);
    wp__str(t, ",\"match\":[");
    for (size_t i = 0; i < WP_RULES; i++) {
        const wp_rule *r = &h->match[i];
        if (!r->operations[0] && !r->groups[0] && !r->versions[0] && !r->resources[0]) break;
        wp__str(t, i ? ",{\"operations\":" : "{\"operations\":");
        wp__strings(t, r->operations, 6);
        wp__str(t, ",\"apiGroups\":");
        wp__strings(t, r->groups, WP_NAMES);
        wp__str(t, ",\"apiVersions\":");
        wp__strings(t, r->versions, WP_NAMES);
        wp__str(t, ",\"resources\":");
        wp__strings(t, r->resources, WP_NAMES);
        wp__char(t, '}');
    }
    wp__str(t, "],\"alternatives\":{");
    for (size_t i = 0; i < WP_ALIASES && h->alternatives[i].alias; i++) {
        wp__print(t, "%s%q:{", i ? "," : "", h->alternatives[i].alias);
        for (size_t j = 0; j < WP_PLACES && h->alternatives[i].places[j].kind; j++)
            wp__print(t, "%s%q:%q", j ? "," : "", h->alternatives[i].places[j].kind, h->alternatives[i].places[j].path);
        wp__char(t, '}');
    }
    wp__char(t, '}');
    if (h->side_effects) wp__print(t, ",\"sideEffects\":%q", h->side_effects);
    wp__char(t, '}');
}

static void wp__simple(wp_text *t, int there, int op, const char *point, const char *const *fields) {
    if (!there) return;
    wp__hook(t, op, point, fields);
    wp__char(t, '}');
}

/* A step of scheduling: its operation, its place in the table, and how it answers. */
typedef struct {
    int op;
    const wp_step *step;
} wp__step_at;

enum { WP__STEPS = 11 };

static void wp__steps(wp__step_at *out) {
    const wp_plugin *p = &wasmplane_plugin;
    const wp__step_at all[WP__STEPS] = {
        {WP__PRE_ENQUEUE, &p->pre_enqueue}, {WP__PRE_FILTER, &p->pre_filter},
        {WP__FILTER, &p->filter},               {WP__POST_FILTER, &p->post_filter},
        {WP__PRE_SCORE, &p->pre_score},       {WP__RESERVE, &p->reserve},
        {WP__UNRESERVE, &p->unreserve},      {WP__PERMIT, &p->permit},
        {WP__PRE_BIND, &p->pre_bind},          {WP__BIND, &p->bind},
        {WP__POST_BIND, &p->post_bind},
    };
    for (size_t i = 0; i < WP__STEPS; i++) out[i] = all[i];
}

static void wp__events(wp_text *t, const char *const *events) {
    if (!events[0]) return;
    wp__str(t, ",\"events\":");
    wp__strings(t, events, WP_EVENTS);
}

static void wp__describe_scheduling(wp_text *t) {
    const wp_plugin *p = &wasmplane_plugin;
    wp__step_at steps[WP__STEPS];
    wp__steps(steps);
    for (size_t i = 0; i < WP__STEPS; i++) {
        if (!steps[i].step->decide) continue;
        wp__hook(t, steps[i].op, wp__point(steps[i].op), steps[i].step->fields);
        wp__events(t, steps[i].step->events);
        if (steps[i].step->pure) wp__str(t, ",\"pure\":true");
        wp__char(t, '}');
    }
    wp__simple(t, p->queue_sort.rate != 0, WP__QUEUE_SORT, wp__point(WP__QUEUE_SORT), p->queue_sort.fields);
    wp__simple(t, p->score.rate != 0, WP__SCORE, wp__point(WP__SCORE), p->score.fields);
    if (p->normalize.scale) wp__simple(t, 1, WP__NORMALIZE, wp__point(WP__NORMALIZE), p->normalize.fields);
}

/* The field "scores" of normalize: the last, where the plugin does not name it itself. */
static size_t wp__scores_field(void) {
    wp_normalize *n = &wasmplane_plugin.normalize;
    size_t i = 0;
    for (; i < WP_FIELDS - 1 && n->fields[i]; i++)
        if (wp__strlen(n->fields[i]) == 6 && wp__equal(n->fields[i], "scores", 6)) return i;
    if (i) n->fields[i] = "scores";
    return i;
}

static void wp__groups(wp_text *t, const wp_groups *g) {
    if (!g->of) return;
    wp__print(t, ",\"groups\":{\"of\":%q,\"other\":%q,\"names\":{", g->of, g->other ? g->other : "");
    for (const wp_group *n = g->names; n && n->value; n++) wp__print(t, "%s%q:%q", n == g->names ? "" : ",", n->value, n->group);
    wp__str(t, "}}");
}

/* The functions of a module. A component's are made of them, below. */
#ifdef WASMPLANE_COMPONENT
#define WP__EXPORT(name) static
#else
#define WP__EXPORT(name) __attribute__((export_name(name)))
#endif

WP__EXPORT("describe") int64_t wp__describe(void) {
    wp__need(0);
    wp__top = wp__floor;
    const wp_plugin *p = &wasmplane_plugin;
    wp_text t = {0};
    wp__print(&t, "{\"abi\":1,\"name\":%q,\"version\":%q,\"settings\":%s,\"needs\":", p->name, p->version, p->settings ? "true" : "false");
    wp__strings(&t, p->needs, WP_NEEDS);
    if (p->settings_schema) wp__print(&t, ",\"settingsSchema\":%s", p->settings_schema);
    wp__groups(&t, &p->groups);
    wp__str(&t, ",\"hooks\":[");
    wp__admission(&t, WP__MUTATE, wp__point(WP__MUTATE), &p->mutate);
    wp__admission(&t, WP__VALIDATE, wp__point(WP__VALIDATE), &p->validate);
    wp__admission(&t, WP__CONVERT, wp__point(WP__CONVERT), &p->convert);
    wp__admission(&t, WP__VALIDATE_CUSTOM, wp__point(WP__VALIDATE_CUSTOM), &p->validate_custom);
    if (p->authorize.decide) {
        wp__hook(&t, WP__AUTHORIZE, wp__point(WP__AUTHORIZE), p->authorize.fields);
        wp__print(&t, ",\"pure\":%s}", p->authorize.pure ? "true" : "false");
    }
    wp__scores_field();
    wp__describe_scheduling(&t);
    wp__simple(&t, p->node_admission.decide != 0, WP__NODE_ADMISSION, wp__point(WP__NODE_ADMISSION), p->node_admission.fields);
    for (size_t i = 0; i < WP_OTHERS && p->others[i].point; i++)
        wp__simple(&t, 1, p->others[i].op, p->others[i].point, p->others[i].fields);
    if (p->table.judge_all) {
        static const char *const none[1] = {0};
        wp__hook(&t, WP__TABLE, wp__point(WP__TABLE), none);
        wp__str(&t, ",\"columns\":");
        wp__columns(&t, p->table.columns);
        wp__str(&t, ",\"pod\":");
        wp__columns(&t, p->table.pod);
        wp__str(&t, ",\"reasons\":");
        wp__strings(&t, p->table.reasons, WP_REASONS);
        wp__events(&t, p->table.events);
        wp__char(&t, '}');
    }
    if (p->reconcile.plan) {
        wp__hook(&t, WP__RECONCILE, wp__point(WP__RECONCILE), p->reconcile.fields);
        wp__str(&t, ",\"primary\":");
        wp__watch(&t, &p->reconcile.primary);
        wp__str(&t, ",\"owned\":[");
        for (size_t i = 0; i < WP_OWNED && p->reconcile.owned[i].kind; i++) {
            if (i) wp__char(&t, ',');
            wp__watch(&t, &p->reconcile.owned[i]);
        }
        wp__str(&t, "]}");
    }
    wp__str(&t, "]}");
    return wp__give(t.at, t.length, 0);
}

WP__EXPORT("alloc") int32_t wp__alloc(int32_t n) {
    if (n <= 0) return 0;
    wp__need(0);
    wp__top = wp__floor;
    wp__input_at = (uintptr_t)wp__take((size_t)n);
    return (int32_t)wp__input_at;
}

static size_t wp__width(void) {
    size_t n = 0;
    while (n < WP_COLUMNS && wasmplane_plugin.table.columns[n].path) n++;
    return n;
}

#ifndef WASMPLANE_COMPONENT /* which has no node table */
WP__EXPORT("reserve") int32_t wp__reserve(int32_t rows) {
    size_t n = (size_t)rows * wp__width();
    if (n > wp__row_capacity) {
        wp__need(0);
        wp__top = wp__floor;
        wp__rows = wp__take(2 * n * sizeof(int64_t)); /* twice, as what is outgrown is not given back */
        if (!wp__rows) return 0;
        wp__row_capacity = 2 * n;
        wp__floor = wp__top;
    }
    return (int32_t)(uintptr_t)wp__rows;
}
#endif

static int64_t wp__encode(const wp_answer *a) {
    if (!a->denied && !a->patch.length && !a->object.length && !a->warnings.length && !a->audit.length) return 0;
    wp_text t = {0};
    wp__print(&t, "{\"allowed\":%s", a->denied ? "false" : "true");
    if (a->denied) {
        wp__print(&t, ",\"message\":%q", a->message);
        if (a->field) wp__print(&t, ",\"field\":%q", a->field);
        if (a->code) wp__print(&t, ",\"code\":%d", a->code);
        if (a->causes.length) {
            wp__str(&t, ",\"causes\":[");
            wp__put(&t, a->causes.at, a->causes.length);
            wp__char(&t, ']');
        }
        if (a->reason) wp__print(&t, ",\"reason\":%q", a->reason);
    } else {
        if (a->patch.length) {
            wp__str(&t, ",\"patch\":[");
            wp__put(&t, a->patch.at, a->patch.length);
            wp__char(&t, ']');
        }
        if (a->object.length) {
            wp__str(&t, ",\"object\":");
            wp__put(&t, a->object.at, a->object.length);
        }
    }
    if (a->warnings.length) {
        wp__str(&t, ",\"warnings\":[");
        wp__put(&t, a->warnings.at, a->warnings.length);
        wp__char(&t, ']');
    }
    if (a->audit.length) {
        wp__str(&t, ",\"auditAnnotations\":{");
        wp__put(&t, a->audit.at, a->audit.length);
        wp__char(&t, '}');
    }
    wp__char(&t, '}');
    return wp__give(t.at, t.length, 0);
}

static void wp__list(wp_text *t, const char *name, const wp_text *list) {
    wp__print(t, "%q:[", name);
    wp__put(t, list->at, list->length);
    wp__str(t, "],");
}

static int64_t wp__encode_plan(const wp_answer *a) {
    wp_text t = {0};
    wp__char(&t, '{');
    wp__list(&t, "apply", &a->apply);
    if (a->patches.length) wp__list(&t, "patch", &a->patches);
    wp__list(&t, "delete", &a->remove);
    wp__list(&t, "conditions", &a->conditions);
    wp__list(&t, "events", &a->events);
    if (a->status.length) {
        wp__str(&t, "\"status\":");
        wp__put(&t, a->status.at, a->status.length);
        wp__char(&t, ',');
    }
    wp__print(&t, "\"requeueSeconds\":%D}", a->requeue);
    return wp__give(t.at, t.length, 0);
}

static int64_t wp__refusal(const wp_answer *a, const char *format) {
    if (!a->denied) return 0;
    wp_text t = {0};
    wp__print(&t, format, a->message, a->field);
    return wp__give(t.at, t.length, 0);
}

/* What a step of scheduling answers: each part that was said. */
static int64_t wp__encode_step(int op, const wp_answer *a) {
    wp_text t = {0};
    int node = op == WP__FILTER || op == WP__PRE_FILTER;
    wp__char(&t, '{');
    if (a->denied) {
        if (op == WP__PERMIT) wp__str(&t, "\"decision\":\"deny\",");
        else if (op != WP__POST_FILTER) wp__print(&t, "%q:false,", node ? "fits" : "allowed");
        if (node && a->never) wp__str(&t, "\"unresolvable\":true,");
        wp__print(&t, "\"reasons\":[%q],", a->message);
    } else if (a->wait > 0) {
        wp__str(&t, "\"decision\":\"wait\",\"waitSeconds\":");
        wp__number(&t, a->wait);
        wp__print(&t, ",\"reasons\":[%q],", a->message);
    } else {
        if (a->skip) wp__str(&t, "\"skip\":true,");
        if (a->narrowed) wp__list(&t, "nodes", &a->nodes);
        if (a->state.length) {
            wp__str(&t, "\"state\":");
            wp__put(&t, a->state.at, a->state.length);
            wp__char(&t, ',');
        }
        if (a->nominated) {
            wp__print(&t, "\"nominated\":%q,", a->nominated);
            wp__list(&t, "evict", &a->evict);
        }
        if (a->reclaim.length) wp__list(&t, "reclaim", &a->reclaim);
        if (a->bound) {
            wp__str(&t, "\"annotations\":{");
            if (a->annotations.length) wp__put(&t, a->annotations.at, a->annotations.length);
            wp__str(&t, "},");
        }
    }
    if (t.length == 1) return 0;
    t.at[t.length - 1] = '}'; /* the last comma */
    return wp__give(t.at, t.length, 0);
}

static int64_t wp__normalize(wp_value in) {
    const wp_normalize *n = &wasmplane_plugin.normalize;
    wp_value given = n->fields[0] ? wp_field(in, wp__scores_field()) : wp_get(in, "scores");
    size_t count = wp_len(given);
    int64_t *scores = wp__need(count * sizeof(int64_t) + 8);
    for (size_t i = 0; i < count; i++) scores[i] = wp_int(wp_at(given, i));
    n->scale(in, scores, count);
    wp_text t = {0};
    wp__char(&t, '[');
    for (size_t i = 0; i < count; i++) {
        if (i) wp__char(&t, ',');
        wp__integer(&t, scores[i] < 0 ? 0 : scores[i] > 100 ? 100 : scores[i]);
    }
    wp__char(&t, ']');
    return wp__give(t.at, t.length, 0);
}

static int64_t wp__settle(const char *input, size_t n) {
    wp_value settings = wp_parse(input, n);
    if (!wp_exists(settings)) return wp__error("the settings are no JSON");
    const char *refusal = wasmplane_plugin.settings(settings);
    if (refusal) return wp__error(refusal);
    wp__floor = wp__top; /* what the settings are made of stays */
    return 0;
}

static int64_t wp__judge(const uint8_t *input) {
    const int64_t *cells = (const int64_t *)(const void *)input;
    size_t rows = (size_t)cells[0], width = wp__width();
    if (rows * width > wp__row_capacity) return wp__error("more rows than were reserved");
    wp_judgement *out = wp__need(rows + 1);
    wasmplane_plugin.table.judge_all(cells + 1, wp__rows, rows, width, out);
    return wp__give((const char *)out, rows, 0);
}

static int64_t wp__run(int32_t op, int32_t at, int32_t n);

WP__EXPORT("call") int64_t wp__call(int32_t op, int32_t at, int32_t n) {
    wp__failure = 0;
    int64_t answer = wp__run(op, at, n);
    return wp__failure ? wp__error(wp__failure) : answer;
}

static int64_t wp__run(int32_t op, int32_t at, int32_t n) {
    wp_plugin *p = &wasmplane_plugin;
    const uint8_t *data = (const uint8_t *)(uintptr_t)at;
    wp_value in = wp__absent;
    wp_answer a = {0};
    if (n <= 0) {
        wp__need(0);
        wp__top = wp__floor;
    }
    if (n >= 8) in = (wp_value){data, *(const uint64_t *)(const void *)data};
    if (op == WP__SETTINGS && p->settings) return wp__settle((const char *)data, (size_t)n);
    if (op == WP__TABLE && p->table.judge_all && n >= 8) return wp__judge(data);
    const wp_hook *decides = op == WP__MUTATE            ? &p->mutate
                             : op == WP__VALIDATE        ? &p->validate
                             : op == WP__CONVERT         ? &p->convert
                             : op == WP__VALIDATE_CUSTOM ? &p->validate_custom
                                                         : 0;
    if (decides && decides->decide) {
        decides->decide(in, &a);
        return wp__encode(&a);
    }
    if (op == WP__AUTHORIZE && p->authorize.decide) {
        wp_verdict v = p->authorize.decide(in);
        if (!v.decision) return 0;
        const char *text = wp_format("{\"decision\":%q,\"reason\":%q}", v.decision, v.reason);
        return wp__give(text, wp__strlen(text), 0);
    }
    if ((op == WP__SCORE && p->score.rate) || (op == WP__QUEUE_SORT && p->queue_sort.rate)) {
        const char *text = wp_format("%D", (op == WP__SCORE ? p->score.rate : p->queue_sort.rate)(in));
        return wp__give(text, wp__strlen(text), 0);
    }
    if (op == WP__NORMALIZE && p->normalize.scale) return wp__normalize(in);
    if (op == WP__FILTER || op >= WP__PRE_ENQUEUE) {
        wp__step_at steps[WP__STEPS];
        wp__steps(steps);
        for (size_t i = 0; i < WP__STEPS; i++) {
            if (steps[i].op != op || !steps[i].step->decide) continue;
            steps[i].step->decide(in, &a);
            return wp__encode_step(op, &a);
        }
    }
    if (op == WP__RECONCILE && p->reconcile.plan) {
        p->reconcile.plan(in, &a);
        return wp__encode_plan(&a);
    }
    if (op == WP__NODE_ADMISSION && p->node_admission.decide) {
        p->node_admission.decide(in, &a);
        return wp__refusal(&a, "{\"admitted\":false,\"message\":%q,\"reason\":%q}");
    }
    for (size_t i = 0; i < WP_OTHERS && p->others[i].point; i++) {
        if (p->others[i].op != op) continue;
        const char *text = p->others[i].answer(in);
        return text ? wp__give(text, wp__strlen(text), 0) : 0;
    }
    return wp__error("the plugin has no such operation");
}

#ifdef WASMPLANE_COMPONENT
static uint32_t wp__place[4]; /* where an answer stands */

/* Memory for the host: for the input of a call, which ends what the call before took, or for a reply, behind which
 * stands a zero. */
__attribute__((export_name("cabi_realloc"))) void *wp__realloc(const char *old, size_t old_length, size_t align, size_t length) {
    (void)align; /* everything is as aligned as an int64_t */
    if (!wp__asking && !old_length) return (void *)(uintptr_t)wp__alloc((int32_t)length);
    char *at = wp__need(length + 1);
    if (old_length) memcpy(at, old, old_length < length ? old_length : length);
    at[length] = 0;
    return at;
}

__attribute__((export_name("describe"))) uint32_t *wp__describe_component(void) {
    uint64_t manifest = (uint64_t)wp__describe();
    wp__place[0] = (uint32_t)(manifest >> 32);
    wp__place[1] = (uint32_t)manifest;
    return wp__place;
}

/* The answer is a result<option<list<u8>>, string>. */
__attribute__((export_name("call"))) uint32_t *wp__call_component(int32_t op, int32_t at, int32_t n) {
    uint64_t answer = (uint64_t)wp__call(op, at, n);
    uint32_t start = (uint32_t)(answer >> 32), length = (uint32_t)answer & 0x7fffffff;
    int failed = (answer >> 31) & 1;
    wp__place[0] = (uint32_t)failed;
    wp__place[1] = failed ? start : length > 0;
    wp__place[2] = failed ? length : start;
    wp__place[3] = length;
    return wp__place;
}
#endif /* WASMPLANE_COMPONENT */
#endif /* WP_DECLARATIONS_ONLY */
#endif /* WASMPLANE_H */
