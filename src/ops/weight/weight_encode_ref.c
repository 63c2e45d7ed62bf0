#define AG_ENCODE(name) name##_ref
#include "ops/weight/weight_encode_body.h"
