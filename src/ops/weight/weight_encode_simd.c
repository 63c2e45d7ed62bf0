#include "ops/simd.h"
#define AG_ENCODE(name) AG_LEVEL(name)
#include "ops/weight/weight_encode_body.h"
