/* Finds the tensors of a SavedModel's signature.
 *
 * TensorFlow's C API hands over the MetaGraphDef as serialised protocol
 * buffers; this reads the few fields that name a tensor, so that no generated
 * code is needed.
 */
#ifndef SIGNATURE_H
#define SIGNATURE_H

#include <stdbool.h>
#include <stddef.h>

struct bytes {
    const unsigned char *data;
    size_t size;
};

/* Fields of SignatureDef. */
enum side { SIGNATURE_INPUTS = 1, SIGNATURE_OUTPUTS = 2 };

struct tensor_info {
    struct bytes name; /* as "operation:0", a part of the message */
    int type;          /* a TF_DataType */
};

/* Whether the MetaGraphDef has such a signature. */
bool has_signature(struct bytes meta_graph, const char *signature);

/* Finds a tensor of a signature; false if there is none. */
bool find_tensor(struct bytes meta_graph, const char *signature,
                 enum side side, const char *key, struct tensor_info *found);

#endif
