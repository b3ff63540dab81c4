/* carpool's routing core as a C library: which experts does each row of a batch use?
 *
 * A handle is made of a policy ("oea:k0=5") and a model's own routing rule. One call scores the router logits of a
 * batch, lets the policy choose, and writes expert ids and weights. All of it is float32 arithmetic on the caller's
 * thread; results are the same bits as those of carpool's engine. Not here: anything that runs on a GPU.
 *
 * Rank order is score descending, then expert id ascending; NaN and -inf are never chosen. Functions that can fail
 * return a status and, if `error` is not NULL, describe it there. A handle may be used by many threads at once. Nothing
 * is allocated once as many threads as ever call together have each seen the largest batch.
 *
 * Link with pkg-config (carpool-routing) or CMake (find_package(carpool_routing), carpool::routing).
 */
#ifndef CARPOOL_ROUTING_H
#define CARPOOL_ROUTING_H

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#define CARPOOL_ROUTING_API
#else
#define CARPOOL_ROUTING_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Raised when a function or the meaning of a field changes. Fields are only ever added, at the end of a struct, and its
 * first field tells which ones the caller knows. */
#define CARPOOL_ROUTING_ABI 1

enum carpool_routing_status {
  CARPOOL_ROUTING_OK = 0,
  CARPOOL_ROUTING_BAD_ARGUMENT = 1, /* a pointer, size, stride or value out of range; the model contradicts itself */
  CARPOOL_ROUTING_BAD_POLICY = 2,   /* unknown policy or argument, or one that does not fit the model */
  CARPOOL_ROUTING_NO_MEMORY = 3,
  CARPOOL_ROUTING_INTERNAL = 4 /* our bug */
};

typedef struct carpool_routing_error {
  int32_t status;
  char text[508]; /* one sentence, ends with 0 */
} carpool_routing_error;

enum carpool_routing_scoring {
  CARPOOL_ROUTING_SOFTMAX = 0,      /* over all experts: Qwen3-MoE, OLMoE, Mixtral, DeepSeek-V2 */
  CARPOOL_ROUTING_SOFTMAX_TOPK = 1, /* over the chosen experts: gpt-oss */
  CARPOOL_ROUTING_SIGMOID = 2       /* DeepSeek-V3, GLM-4.5 to 5, Kimi-K2, MiniMax-M2 */
};

enum carpool_routing_group_score {
  CARPOOL_ROUTING_GROUP_TOP2 = 0, /* the sum of a group's two best: DeepSeek-V3 */
  CARPOOL_ROUTING_GROUP_MAX = 1   /* its best: DeepSeek-V2 */
};

/* What stands in columns that a row does not need. */
enum carpool_routing_filler {
  CARPOOL_ROUTING_FILL_NONE = 0,  /* id -1, weight 0 */
  CARPOOL_ROUTING_FILL_REPEAT = 1 /* an expert that runs anyway, weight 0, for kernels that take no -1: the row's own
                                     best; for rows without any, the first one of the batch */
};

enum carpool_routing_type { CARPOOL_ROUTING_F32 = 0, CARPOOL_ROUTING_BF16 = 1, CARPOOL_ROUTING_F16 = 2 };

/* The model's own rule. carpool_routing_model_init sets the defaults given here. */
typedef struct carpool_routing_model {
  size_t size;                 /* sizeof(carpool_routing_model), set by carpool_routing_model_init */
  int32_t n_experts;           /* E, routed experts; required */
  int32_t top_k;               /* K, routed experts per row, shared ones not counted; required */
  int32_t scoring;             /* carpool_routing_scoring, SOFTMAX */
  int32_t renormalize;         /* 1: weights are divided by their sum over the row; default 1 */
  int32_t n_group;             /* 1 */
  int32_t topk_group;          /* 1 */
  int32_t group_score;         /* carpool_routing_group_score, TOP2 */
  float routed_scaling_factor; /* 1: what the weights of routed experts are multiplied by in the end */
  int32_t n_shared;            /* 0: columns at the end of each row for fused shared experts, ids E, E+1, ... */
  float shared_weight;         /* 1: their weight, not scaled */
  int32_t filler;              /* carpool_routing_filler, FILL_NONE */
} carpool_routing_model;

/* Flags of a row; 0 is a decode row that takes part. */
#define CARPOOL_ROUTING_ROW_PREFILL 1u  /* stays plain */
#define CARPOOL_ROUTING_ROW_PAD 2u      /* has no experts and no influence; wins over PREFILL */
#define CARPOOL_ROUTING_ROW_ISOLATED 4u /* stays plain, neither lends experts nor borrows */

/* One batch: the rows of one step in one MoE layer. carpool_routing_batch_init sets everything to 0. */
typedef struct carpool_routing_batch {
  size_t size;               /* sizeof(carpool_routing_batch), set by carpool_routing_batch_init */
  int32_t rows;              /* T */
  int32_t logits_type;       /* carpool_routing_type */
  const void* logits;        /* [T, E] router logits, converted exactly; pointers lie at multiples of their type */
  int64_t logits_stride;     /* elements from row to row; 0: E */
  const float* bias;         /* [E], added for ranking only, or NULL */
  const uint8_t* row_flags;  /* [T] or NULL: all decode */
  const int32_t* row_groups; /* [T] or NULL: rows borrow only from rows of the same group (a tenant) */
  int32_t* ids;              /* [T, columns] out */
  float* weights;            /* [T, columns] out */
  int64_t ids_stride;        /* elements from row to row; 0: columns */
  int64_t weights_stride;    /* the same */
  int32_t columns;           /* at least carpool_routing_columns */
  int32_t in_place;          /* 1: ids and weights hold the model's own choice, in any order; rows that the policy does
                                not decide and the columns of shared experts are left as they are */
  int32_t layer;             /* for policies whose arguments name layers; 0 is the first */
  uint8_t* reasons;          /* [T] out or NULL: why each row stayed plain, see carpool_routing_reason_name */
} carpool_routing_batch;

/* Room for the reasons why a row stays plain, of which carpool_routing_reason_name knows how many there are; reason 0
 * means that the policy decided it. */
#define CARPOOL_ROUTING_MOST_REASONS 16

/* Sums over all calls since the handle was made or reset. Pads are counted nowhere. */
typedef struct carpool_routing_counters {
  size_t size;                                      /* sizeof(carpool_routing_counters), set by the caller */
  int64_t calls;                                    /* batches routed: one per step and MoE layer */
  int64_t distinct_experts;                         /* distinct experts that the rows use */
  int64_t distinct_plain;                           /* what plain routing would have used */
  int64_t slots;                                    /* (row, expert) pairs */
  int64_t rerouted_rows;                            /* rows whose set of experts differs from the plain one */
  int64_t underfilled_rows;                         /* rows with fewer experts than plain routing gives them */
  int64_t plain_rows[CARPOOL_ROUTING_MOST_REASONS]; /* rows by reason; [0]: decided by the policy */
  int64_t
      plain_calls[CARPOOL_ROUTING_MOST_REASONS]; /* (call, group) pairs in which the policy decided no row, by reason */
} carpool_routing_counters;

typedef struct carpool_routing carpool_routing;

CARPOOL_ROUTING_API int32_t carpool_routing_abi(void);         /* CARPOOL_ROUTING_ABI of the library */
CARPOOL_ROUTING_API const char* carpool_routing_version(void); /* "0.1.0" */

/* Name and one-line summary of the index-th policy; NULL past the last. */
CARPOOL_ROUTING_API const char* carpool_routing_policy_name(int32_t index);
CARPOOL_ROUTING_API const char* carpool_routing_policy_summary(int32_t index);
/* "applied", "policy", "isolated", "phase", "min_batch", "max_rows", "union", "budget"; NULL past the last. */
CARPOOL_ROUTING_API const char* carpool_routing_reason_name(int32_t reason);

/* `size` is sizeof(*model), sizeof(*batch). */
CARPOOL_ROUTING_API void carpool_routing_model_init(carpool_routing_model* model, size_t size);
CARPOOL_ROUTING_API void carpool_routing_batch_init(carpool_routing_batch* batch, size_t size);

/* Makes a handle. `policy`: NAME or NAME:key=value,... as everywhere in carpool. *out is NULL on failure. */
CARPOOL_ROUTING_API int32_t carpool_routing_create(const char* policy, const carpool_routing_model* model,
                                                   carpool_routing** out, carpool_routing_error* error);
CARPOOL_ROUTING_API void carpool_routing_destroy(carpool_routing* routing); /* NULL is fine */

/* The canonical spec of the policy: its name and every argument that differs from its default. */
CARPOOL_ROUTING_API const char* carpool_routing_spec(const carpool_routing* routing);
/* Columns that a row may need: max(K, k_max of the policy) + n_shared. */
CARPOOL_ROUTING_API int32_t carpool_routing_columns(const carpool_routing* routing);

/* Routes one batch. On failure nothing was written. */
CARPOOL_ROUTING_API int32_t carpool_routing_route(carpool_routing* routing, const carpool_routing_batch* batch,
                                                  carpool_routing_error* error);

CARPOOL_ROUTING_API int32_t carpool_routing_get_counters(carpool_routing* routing, carpool_routing_counters* out,
                                                         carpool_routing_error* error);
CARPOOL_ROUTING_API void carpool_routing_reset_counters(carpool_routing* routing);

#ifdef __cplusplus
}
#endif

#endif /* CARPOOL_ROUTING_H */
