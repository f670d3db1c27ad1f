/* The C interface of our module around libgloo. Gloo's symbols also live inside libtorch_cpu.so, in another version: only a module
   that is opened with RTLD_LOCAL | RTLD_DEEPBIND, and spoken to in C, keeps the two apart. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct GlooLink GlooLink;
typedef struct GlooRequest GlooRequest;

/* Calls `deliver(receiver, rank, data, bytes)` with what each rank gave. Collective. */
typedef void (*GlooDeliver)(void* receiver, int rank, const char* data, size_t bytes);
typedef void (*GlooAllGather)(void* context, const char* mine, size_t bytes, GlooDeliver deliver, void* receiver);

typedef struct GlooInterface {
  /* Null on failure, with the cause in `error`. */
  GlooLink* (*connect)(int rank, int size, const char* address, int64_t timeout_ms, GlooAllGather all_gather, void* context, char* error, size_t error_bytes);
  void (*disconnect)(GlooLink* link);
  GlooRequest* (*send)(GlooLink* link, int to, uint64_t slot, const void* data, size_t bytes);
  GlooRequest* (*recv)(GlooLink* link, int from, uint64_t slot, void* data, size_t bytes);
  int (*wait)(GlooRequest* request, int64_t timeout_ms); /* 1: done, 0: the time is up, or the link broke */
  int (*test)(GlooRequest* request);                     /* 1: done, 0: not yet, -1: the link broke */
  void (*release)(GlooRequest* request);
  /* Gloo's own all-reduce of floats, for benchmarks. 0 on success. */
  int (*all_reduce_float)(GlooLink* link, float* data, size_t count, uint32_t tag);
} GlooInterface;

const GlooInterface* manyranks_gloo_interface(void);

#ifdef __cplusplus
}
#endif
