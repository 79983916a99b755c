// SPDX-License-Identifier: Apache-2.0

// A plugin in D (-betterC), from sdk/spec alone: it refuses pods without the label owner.
module plugin;

private immutable string manifest = `{"abi":1,"name":"owners","version":"1.0.0","hooks":[{"op":2,"point":"admission.validate",` ~
    `"match":[{"operations":["CREATE"],"apiGroups":[""],"apiVersions":["v1"],"resources":["pods"]}],` ~
    `"fields":["object.metadata.labels.owner"]}]}`;
private immutable string refusal = `{"allowed":false,"message":"name an owner","field":"metadata.labels.owner"}`;
private __gshared ubyte[65_536] input;

private long at(const(void)* p, size_t length) { return (cast(long) cast(size_t) p << 32) | length; }

extern (C) export long describe() { return at(manifest.ptr, manifest.length); }

extern (C) export void* alloc(size_t length) { return length <= input.length ? input.ptr : null; }

extern (C) export long call(int op, size_t from, size_t length)
{
    auto document = cast(const(char)*) from; // {"object":{"metadata":{"labels":{"owner":"a"}}}}
    enum key = `"owner":"`;
    for (size_t i = 0; i + key.length < length; i++)
    {
        size_t same = 0;
        while (same < key.length && document[i + same] == key[same])
            same++;
        if (same == key.length && document[i + same] != '"')
            return 0;
    }
    return at(refusal.ptr, refusal.length);
}
