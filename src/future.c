/* fa_compile on another thread. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "context.h"
#include "fork.h"
#include "status.h"

struct fa_future {
    atomic_uint refs; /* the caller's and, until it has run, the task's */
    fa_context *ctx;
    fa_spec spec;
    void *spec_memory;
    pthread_mutex_t lock;
    pthread_cond_t ended;
    /* under lock */
    bool done;
    fa_status status;
    fa_kernel *kernel; /* held by the future */
    char *message;
};

static void future_drop(fa_future *f)
{
    if (atomic_fetch_sub_explicit(&f->refs, 1, memory_order_acq_rel) != 1)
        return;
    fa_kernel_release(f->kernel);
    pthread_cond_destroy(&f->ended);
    pthread_mutex_destroy(&f->lock);
    free(f->spec_memory);
    free(f->message);
    fa__context_drop(f->ctx);
    free(f);
}

static void run(void *arg, bool cancelled)
{
    fa_future *f = arg;
    fa_kernel *kernel = NULL;
    fa_origin origin;
    fa_status status = FA_ERR_CANCELLED;
    const char *message = "the context was destroyed before this compile began";
    if (!cancelled) {
        status = fa__compile(f->ctx, &f->spec, &kernel, &origin);
        message = fa_last_error();
    }
    pthread_mutex_lock(&f->lock);
    f->status = status;
    f->kernel = kernel;
    if (status)
        f->message = strdup(message);
    f->done = true;
    pthread_cond_broadcast(&f->ended);
    pthread_mutex_unlock(&f->lock);
    future_drop(f);
}

static fa_status make(fa_context *ctx, const fa_spec *spec, const fa__op *op, fa_future **out)
{
    fa_future *f = calloc(1, sizeof *f);
    if (!f)
        return fa__fail_memory(sizeof *f);
    f->spec = *spec;
    fa_status status = op->copy ? op->copy(&f->spec, &f->spec_memory) : FA_OK;
    if (status) {
        free(f);
        return status;
    }
    pthread_mutex_init(&f->lock, NULL);
    pthread_cond_init(&f->ended, NULL);
    fa__context_hold(ctx);
    f->ctx = ctx;
    atomic_store(&f->refs, 2);
    if (!fa__pool_add(ctx->pool, run, f)) {
        atomic_store(&f->refs, 1);
        future_drop(f);
        return fa__fail(FA_ERR_OUT_OF_MEMORY,
                        "fa_compile_async: no memory or threads for a worker");
    }
    *out = f;
    return FA_OK;
}

fa_status fa_compile_async(fa_context *ctx, const fa_spec *spec, fa_future **out)
{
    const fa__op *op = NULL;
    if (!out)
        return fa__fail(FA_ERR_NULL_POINTER, "fa_compile_async: out is NULL");
    *out = NULL;
    fa_status status = fa__context_check(ctx, "fa_compile_async");
    if (status)
        return status;
    if (!spec)
        return fa__fail(FA_ERR_NULL_POINTER, "fa_compile_async: spec is NULL");
    fa_spec normal;
    status = fa__spec_prepare(ctx, spec, &op, &normal, NULL);
    return status ? status : make(ctx, &normal, op, out);
}

static bool forked(const fa_future *f)
{
    return f->ctx->fork_generation != fa__fork_generation();
}

bool fa_future_ready(const fa_future *future)
{
    if (!future || forked(future))
        return true;
    fa_future *f = (fa_future *)future; /* locking is not a change that a caller can see */
    pthread_mutex_lock(&f->lock);
    bool done = f->done;
    pthread_mutex_unlock(&f->lock);
    return done;
}

fa_status fa_future_wait(fa_future *future, fa_kernel **out)
{
    if (!out)
        return fa__fail(FA_ERR_NULL_POINTER, "fa_future_wait: out is NULL");
    *out = NULL;
    if (!future)
        return fa__fail(FA_ERR_NULL_POINTER, "fa_future_wait: future is NULL");
    if (forked(future))
        return fa__fail(FA_ERR_FORKED,
                        "fa_future_wait: the future was made before this process was forked");
    pthread_mutex_lock(&future->lock);
    while (!future->done)
        pthread_cond_wait(&future->ended, &future->lock);
    pthread_mutex_unlock(&future->lock);
    /* Nothing changes any more once it is done. */
    if (future->status)
        return fa__fail_text(future->status,
                             future->message ? future->message : fa_status_name(future->status));
    fa__kernels_hold(future->kernel->ctx->kernels, future->kernel);
    *out = future->kernel;
    return FA_OK;
}

void fa_future_release(fa_future *future)
{
    if (future && !forked(future))
        future_drop(future);
}
