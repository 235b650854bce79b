#include "signature.h"

#include <stdint.h>
#include <string.h>

/* Numbers of fields in TensorFlow's meta_graph.proto. */
enum {
    META_GRAPH_SIGNATURES = 5,
    TENSOR_INFO_NAME = 1,
    TENSOR_INFO_TYPE = 2,
    /* In every map of protocol buffers. */
    ENTRY_KEY = 1,
    ENTRY_VALUE = 2,
};

enum wire_type { VARINT = 0, FIXED_64 = 1, LENGTH_DELIMITED = 2, FIXED_32 = 5 };

struct field {
    uint64_t number;
    enum wire_type wire_type;
    uint64_t value;       /* of a VARINT */
    struct bytes content; /* of a LENGTH_DELIMITED */
};

static bool take(struct bytes *rest, uint64_t size, struct bytes *taken)
{
    if (size > rest->size)
        return false;
    taken->data = rest->data;
    taken->size = (size_t)size;
    rest->data += size;
    rest->size -= (size_t)size;
    return true;
}

static bool take_varint(struct bytes *rest, uint64_t *value)
{
    *value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
        struct bytes byte;
        if (!take(rest, 1, &byte))
            return false;
        *value |= (uint64_t)(byte.data[0] & 0x7f) << shift;
        if (byte.data[0] < 0x80)
            return true;
    }
    return false;
}

static bool take_field(struct bytes *rest, struct field *field)
{
    uint64_t tag, size;
    if (!take_varint(rest, &tag))
        return false;
    field->number = tag >> 3;
    field->wire_type = tag & 7;
    switch (field->wire_type) {
    case VARINT:
        return take_varint(rest, &field->value);
    case LENGTH_DELIMITED:
        return take_varint(rest, &size) && take(rest, size, &field->content);
    case FIXED_64:
        return take(rest, 8, &field->content);
    case FIXED_32:
        return take(rest, 4, &field->content);
    }
    return false;
}

static bool find_field(struct bytes message, uint64_t number,
                       enum wire_type wire_type, struct field *found)
{
    while (take_field(&message, found))
        if (found->number == number && found->wire_type == wire_type)
            return true;
    return false;
}

/* Finds the message that a map, field `number`, has for a key. */
static bool find_entry(struct bytes message, uint64_t number, const char *key,
                       struct bytes *found)
{
    size_t size = strlen(key);
    struct field entry, field;
    while (take_field(&message, &entry)) {
        if (entry.number != number || entry.wire_type != LENGTH_DELIMITED)
            continue;
        if (find_field(entry.content, ENTRY_KEY, LENGTH_DELIMITED, &field) &&
            field.content.size == size &&
            memcmp(field.content.data, key, size) == 0 &&
            find_field(entry.content, ENTRY_VALUE, LENGTH_DELIMITED, &field)) {
            *found = field.content;
            return true;
        }
    }
    return false;
}

bool has_signature(struct bytes meta_graph, const char *signature)
{
    struct bytes found;
    return find_entry(meta_graph, META_GRAPH_SIGNATURES, signature, &found);
}

bool find_tensor(struct bytes meta_graph, const char *signature,
                 enum side side, const char *key, struct tensor_info *found)
{
    struct bytes definition, info;
    struct field name, type;
    if (!find_entry(meta_graph, META_GRAPH_SIGNATURES, signature,
                    &definition) ||
        !find_entry(definition, side, key, &info) ||
        !find_field(info, TENSOR_INFO_NAME, LENGTH_DELIMITED, &name) ||
        !find_field(info, TENSOR_INFO_TYPE, VARINT, &type))
        return false;
    found->name = name.content;
    found->type = (int)type.value;
    return true;
}
