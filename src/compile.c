/* The pipeline, top to bottom: pack, look in memory, validate, plan, instantiate, key, look on
 * disk, compile, publish, load. */
#include <stdlib.h>
#include <string.h>

#include "compile_slots.h"
#include "compiler.h"
#include "context.h"
#include "status.h"

/* Longest packed spec that needs no allocation. */
#define PACK_ON_STACK 1024

fa_status fa__spec_prepare(const fa_context *ctx, const fa_spec *spec, const fa__op **op,
                           fa_spec *normal, fa__plan *plan)
{
    fa_spec own_spec;
    fa__plan own_plan;
    fa_status status = fa__check_struct("fa_spec", spec, spec->size, sizeof *spec);
    if (status)
        return status;
    *op = fa__op_find(spec->op);
    if (!*op)
        return fa__fail(FA_ERR_UNKNOWN_NAME, "fa_spec.op = %d is no operation (enum fa_op)",
                        (int)spec->op);
    if (!normal)
        normal = &own_spec;
    if (!plan)
        plan = &own_plan;
    *normal = *spec;
    normal->size = sizeof *normal;
    *plan = (fa__plan){0};
    status = fa__spec_check_table(*op, normal);
    if (status == FA_OK)
        status = (*op)->validate(normal, &ctx->target);
    if (status == FA_OK)
        status = (*op)->plan(normal, &ctx->target, plan);
    if (status == FA_OK && plan->smem_dynamic_bytes > ctx->target.smem_optin)
        status = fa__fail(FA_ERR_SHARED_MEMORY,
                          "%s needs %u bytes of dynamic shared memory; a block on %s can have %u",
                          (*op)->name, plan->smem_dynamic_bytes, ctx->target.arch,
                          ctx->target.smem_optin);
    return status;
}

static void pack(const fa__op *op, const fa_spec *spec, fa__buf *out)
{
    int32_t id = (int32_t)op->id;
    fa__buf_bytes(out, &id, sizeof id);
    if (op->pack)
        op->pack(spec, out);
    else
        fa__spec_pack_table(op, spec, out);
}

/* --- cache and compiler --- */

static bool from_disk(fa_context *ctx, const fa__key *key, fa__entry *entry)
{
    if (!fa__cache_get(ctx->cache, key, entry))
        return false;
    atomic_fetch_add(&ctx->counters.disk_hits, 1);
    return true;
}

static fa_status run_compiler(fa_context *ctx, const fa__program *program, fa__entry *entry)
{
    fa_status status = fa__slot_enter(ctx->compile_jobs);
    if (status)
        return status;
    uint64_t begin = fa__now_ns();
    status = fa__compiler_compile(program, &ctx->target, entry);
    uint64_t ns = fa__now_ns() - begin;
    fa__slot_leave();
    fa__log_write(&ctx->log, FA_LOG_DEBUG, "NVRTC %s, version %d, build %s: %s took %d ms",
                  fa__compiler_path(), (int)fa__compiler_version(), fa__compiler_id(),
                  program->label.data, (int)(ns / 1000000));
    atomic_fetch_add(&ctx->counters.compile_ns, ns);
    atomic_fetch_add(status ? &ctx->counters.compile_errors : &ctx->counters.compiles, 1);
    return status;
}

/* The entry from the disk cache, else from NVRTC. */
static fa_status obtain(fa_context *ctx, const fa__program *program, const fa__key *key,
                        fa__entry *entry, fa_origin *origin)
{
    fa_status status = FA_OK;
    *origin = FA_ORIGIN_DISK;
    if (from_disk(ctx, key, entry))
        return FA_OK;
    fa__log_write(&ctx->log, FA_LOG_DEBUG, "%s for %s is not on disk, key %s", program->label.data,
                  ctx->target.arch, key->name);
    if (atomic_load(&ctx->sealed))
        return fa__fail(
            FA_ERR_SEALED,
            "the context is sealed and %s for %s was not warmed (key %s); add it to the "
            "manifest or warm it before fa_seal",
            program->label.data, ctx->target.arch, key->name);
    int lock = fa__cache_lock(ctx->cache, key);
    if (!from_disk(ctx, key, entry)) { /* another process may have published it meanwhile */
        *origin = FA_ORIGIN_COMPILED;
        status = run_compiler(ctx, program, entry);
        if (status == FA_OK)
            fa__cache_put(ctx->cache, key, entry);
    }
    fa__cache_unlock(ctx->cache, key, lock);
    return status;
}

/* --- the steps below validation --- */

static fa_status produce(fa_context *ctx, const fa__op *op, const fa_spec *spec,
                         const fa__plan *plan, fa_kernel **out, fa_origin *origin)
{
    fa__program program = {0};
    fa__key key = {0};
    fa__entry entry = {0};
    fa_status status = fa__compiler_identify();
    if (status == FA_OK)
        status = fa__program_make(op, spec, plan, &program);
    if (status == FA_OK)
        status = fa__key_make(op, &program, &ctx->target, fa__compiler_name(), &key);
    if (status == FA_OK)
        status = obtain(ctx, &program, &key, &entry, origin);
    if (status)
        goto done;

    fa__log_write(&ctx->log, FA_LOG_INFO, "%s for %s: %s, %u registers, %zu bytes",
                  program.label.data, ctx->target.arch,
                  *origin == FA_ORIGIN_DISK ? "from disk" : "compiled", entry.registers,
                  entry.cubin_bytes);
    uint64_t begin = fa__now_ns();
    status = fa__kernel_load(ctx, op, spec, plan, &program, &key, &entry, out);
    atomic_fetch_add(&ctx->counters.load_ns, fa__now_ns() - begin);
    if (status == FA_OK)
        atomic_store(&(*out)->origin, (int)*origin);
done:
    fa__program_free(&program);
    fa__key_free(&key);
    fa__entry_free(&entry);
    return status;
}

/* The leader's work. `bytes` is the packed spec as asked; a spec that differs from its normal form
 * (defaults left out) is sent round again in that form, so that both lead to one kernel. */
static fa_status lead(fa_context *ctx, const fa_spec *spec, const fa__buf *bytes, fa_kernel **out,
                      fa_origin *origin)
{
    const fa__op *op = NULL;
    fa_spec normal;
    fa__plan plan;
    char room[PACK_ON_STACK];
    fa__buf normal_bytes = fa__buf_on(room, sizeof room);
    fa_status status = fa__spec_prepare(ctx, spec, &op, &normal, &plan);
    if (status)
        return status;
    pack(op, &normal, &normal_bytes);
    if (normal_bytes.failed) {
        status = fa__fail_memory(bytes->len);
    } else if (normal_bytes.len == bytes->len &&
               memcmp(normal_bytes.data, bytes->data, bytes->len) == 0) {
        status = produce(ctx, op, &normal, &plan, out, origin);
        if (status == FA_OK)
            fa__record_add(ctx->record, op, &normal, bytes->data, bytes->len);
    } else {
        status = fa__compile(ctx, &normal, out, origin);
    }
    fa__buf_free(&normal_bytes);
    return status;
}

fa_status fa__compile(fa_context *ctx, const fa_spec *spec, fa_kernel **out, fa_origin *origin)
{
    char room[PACK_ON_STACK];
    fa__buf bytes = fa__buf_on(room, sizeof room);
    fa__flight *flight = NULL;
    bool waited = false;
    fa_status status = fa__check_struct("fa_spec", spec, spec->size, sizeof *spec);
    if (status)
        return status;
    const fa__op *op = fa__op_find(spec->op);
    if (!op || (op->packable && !op->packable(spec))) /* refused with the reason */
        return fa__spec_prepare(ctx, spec, &op, NULL, NULL);
    pack(op, spec, &bytes);
    if (bytes.failed) {
        status = fa__fail_memory(bytes.capacity);
        goto done;
    }
    *origin = FA_ORIGIN_MEMORY;
    *out = fa__kernels_find(ctx->kernels, bytes.data, bytes.len);
    if (!*out)
        status = fa__flight_board(ctx->kernels, bytes.data, bytes.len, out, &flight, &waited);
    if (waited)
        atomic_fetch_add_explicit(&ctx->counters.waits, 1, memory_order_relaxed);
    if (flight) {
        status = lead(ctx, spec, &bytes, out, origin);
        status = fa__flight_land(ctx->kernels, flight, status, *out);
    }
    if (status == FA_OK && !flight && *origin == FA_ORIGIN_MEMORY) {
        atomic_fetch_add_explicit(&ctx->counters.memory_hits, 1, memory_order_relaxed);
        atomic_store_explicit(&(*out)->origin, FA_ORIGIN_MEMORY, memory_order_relaxed);
    }
done:
    fa__buf_free(&bytes);
    return status;
}

/* --- public --- */

fa_status fa_compile(fa_context *ctx, const fa_spec *spec, fa_kernel **out)
{
    fa_origin origin;
    if (!out)
        return fa__fail(FA_ERR_NULL_POINTER, "fa_compile: out is NULL");
    *out = NULL;
    fa_status status = fa__context_check(ctx, "fa_compile");
    if (status)
        return status;
    if (!spec)
        return fa__fail(FA_ERR_NULL_POINTER, "fa_compile: spec is NULL");
    return fa__compile(ctx, spec, out, &origin);
}

fa_status fa_render(fa_context *ctx, const fa_spec *spec, fa_text what, char **out)
{
    const fa__op *op = NULL;
    fa_spec normal;
    fa__plan plan;
    fa__program program = {0};
    if (!out)
        return fa__fail(FA_ERR_NULL_POINTER, "fa_render: out is NULL");
    *out = NULL;
    fa_status status = fa__context_check(ctx, "fa_render");
    if (status)
        return status;
    if (!spec)
        return fa__fail(FA_ERR_NULL_POINTER, "fa_render: spec is NULL");
    if (what != FA_TEXT_SOURCE && what != FA_TEXT_PTX)
        return fa__fail(FA_ERR_VALUE, "fa_render: what = %d; allowed: FA_TEXT_SOURCE, FA_TEXT_PTX",
                        (int)what);
    if (what == FA_TEXT_PTX && atomic_load(&ctx->sealed))
        return fa__fail(FA_ERR_SEALED,
                        "fa_render: the context is sealed; FA_TEXT_PTX would compile");
    status = fa__spec_prepare(ctx, spec, &op, &normal, &plan);
    if (status == FA_OK)
        status = fa__program_make(op, &normal, &plan, &program);
    if (status == FA_OK && what == FA_TEXT_SOURCE) {
        *out = strdup(program.source.data);
        if (!*out)
            status = fa__fail_memory(program.source.len);
    } else if (status == FA_OK) {
        status = fa__slot_enter(ctx->compile_jobs);
        if (status == FA_OK) {
            status = fa__compiler_ptx(&program, &ctx->target, out);
            fa__slot_leave();
        }
    }
    fa__program_free(&program);
    return status;
}
