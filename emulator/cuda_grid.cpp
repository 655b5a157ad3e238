// The blocks of a grid on threads of the operating system, and the order of grids that start before
// the one before them has ended: as late as is legal for everybody who does not wait.
#include <algorithm>
#include <chrono>
#include <set>
#include <system_error>
#include <thread>

#include "driver.h"
#include "fiber.h"
#include "print.h"
#include "sanitizer.h"

namespace fajit_emu {

namespace {

// Below so many threads of a grid another thread of the operating system costs more than it saves.
constexpr uint64_t WORTH_A_THREAD = 4096;

// A block that waits although nothing forbids it to go on does so at most for this long while
// nothing else happens: blocks may wait for each other in ways that nobody here knows of.
constexpr std::chrono::seconds PATIENCE{5};
constexpr std::chrono::milliseconds TURN{500};

// What the block that this thread runs has told already.
struct told {
    bool lets_next = false, waits = false;
};
thread_local told block_told;

class grid_run final : public succession {
  public:
    grid_run(const grid &what, operation &op, uint64_t resident) : g(what), self(op), wave(resident)
    {
        g.order = this;
        count = uint64_t{g.blocks.x} * g.blocks.y * g.blocks.z;
    }
    failure run(bool cooperative, unsigned threads);

    state before() override;
    state wait_for_before(uint64_t block) override;
    void let_next(uint64_t block) override;

  private:
    grid g;
    operation &self;
    uint64_t count, wave;
    std::atomic<uint64_t> next{0}, letting{0};
    std::atomic<bool> stop{false}, before_is_past{false};

    // Of the threads that run blocks at most `limit` go on at a time. One that waits keeps its
    // block, and lets another run the next one while a wave has room.
    std::mutex lock;
    std::condition_variable turn;
    std::vector<std::thread> others;
    std::set<uint64_t> resuming; // blocks; the first goes on first
    uint64_t live = 0, going = 0, limit = 1;
    uint64_t waiting = 0, ended = 0; // blocks that wait for the grid before, that ended without
    bool full = false; // a wave waits, and there are more blocks; under the driver's lock
    failure first;

    bool add_thread();
    void block(uint64_t index);
    void blocks();
    void hand_over();
    void take_turn(uint64_t block);
    void tell_lets_next();
    void tell_waits(bool has_ended);
    bool next_has_come() const;
};

// Under `lock`.
bool grid_run::add_thread()
{
    try {
        others.push_back(start_thread([this] { blocks(); }));
    } catch (const std::system_error &) {
        return false;
    }
    live++;
    return true;
}

void grid_run::block(uint64_t index)
{
    failure why;
    block_told = {};
    const bool good = block_run(g, index, &why);
    tell_lets_next();
    tell_waits(true);
    if (!good) {
        stop = true;
        std::lock_guard<std::mutex> hold(lock);
        if (!first.error)
            first = why;
    }
}

void grid_run::blocks()
{
    for (;;) {
        const uint64_t index = next++;
        if (index >= count || stop)
            break;
        // Shared memory belongs to a thread of the operating system. To ThreadSanitizer it has to
        // be new in every block.
        if (under_thread_sanitizer())
            start_thread([this, index] { block(index); }).join();
        else
            block(index);
    }
    std::lock_guard<std::mutex> hold(lock);
    live--;
    going--;
    turn.notify_all();
}

// Those of a cooperative launch run at once, each on a thread of its own.
failure grid_run::run(bool cooperative, unsigned threads)
{
    const uint64_t each = uint64_t{g.threads.x} * g.threads.y * g.threads.z, all = count * each;
    threads = static_cast<unsigned>(std::min<uint64_t>(threads, STACKS / each));
    const uint64_t wanted =
        cooperative ? count : std::min({uint64_t{threads}, count, 1 + all / WORTH_A_THREAD});
    {
        std::lock_guard<std::mutex> hold(lock);
        limit = cooperative ? count : threads;
        live = 1;
        while (live < wanted && add_thread())
            continue;
        going = live;
        if (cooperative && live < wanted) { // fewer do as well, unless they wait for each other
            stop = true;
            first = {CUDA_ERROR_OUT_OF_MEMORY, "too few threads for a cooperative launch"};
        }
    }
    blocks();
    for (;;) {
        std::thread ended;
        {
            std::lock_guard<std::mutex> hold(lock);
            if (others.empty())
                break;
            ended = std::move(others.back());
            others.pop_back();
        }
        ended.join();
    }
    if (const thread_sanitizer *watching = under_thread_sanitizer())
        watching->acquire(&g); // all threads of the grid released it
    print_show();
    return first;
}

// --- threads that wait ---------------------------------------------------------------------------

void grid_run::hand_over()
{
    {
        std::lock_guard<std::mutex> hold(lock);
        if (next < count && !stop && live < wave && add_thread())
            return;
        going--;
        turn.notify_all();
        if (going || next >= count)
            return;
    }
    locked hold(driver().lock);
    full = true;
    driver().changed.notify_all();
}

void grid_run::take_turn(uint64_t block)
{
    std::unique_lock<std::mutex> hold(lock);
    resuming.insert(block);
    turn.wait_until(hold, std::chrono::system_clock::now() + TURN,
                    [&] { return going < limit && *resuming.begin() == block; });
    resuming.erase(block);
    going++;
    turn.notify_all();
}

// --- the grid before -----------------------------------------------------------------------------

// Blocks that end make room for others, those that wait do not: when a wave waits, or all that have
// not ended do, nothing more happens before the grid before this one ends.
void grid_run::tell_waits(bool has_ended)
{
    if (block_told.waits)
        return;
    block_told.waits = true;
    std::lock_guard<std::mutex> hold(lock);
    (has_ended ? ended : waiting)++;
    if (waiting != std::min(count - ended, wave))
        return;
    locked hold_driver(driver().lock);
    self.stuck = true;
    driver().changed.notify_all();
}

succession::state grid_run::before()
{
    if (before_is_past && !under_thread_sanitizer()) // the lock orders this block after the grid
        return ENDED;
    locked hold(driver().lock);
    if (self.before && !self.before->done)
        return RUNNING;
    if (self.context->broken.error)
        return FAILED;
    before_is_past = true;
    return ENDED;
}

succession::state grid_run::wait_for_before(uint64_t block)
{
    tell_waits(false);
    hand_over();
    {
        locked hold(driver().lock);
        driver().changed.wait(hold, [&] { return self.before->done; });
    }
    take_turn(block);
    return before();
}

// --- the grid after ------------------------------------------------------------------------------

void grid_run::tell_lets_next()
{
    if (block_told.lets_next)
        return;
    block_told.lets_next = true;
    if (++letting == count) {
        locked hold(driver().lock);
        self.lets_next = true;
        stream_serve(self.stream);
    }
}

// Under the driver's lock: all that comes after this grid and may start now has gone as far as it
// can without it.
bool grid_run::next_has_come() const
{
    const auto &queue = self.stream->queue;
    size_t at = 0;
    while (queue[at].get() != &self)
        at++;
    if (stop || self.context->broken.error || at + 1 >= OVERLAP)
        return true;
    if (full && next < count) // the next grid cannot come before these make room for the others
        return true;
    if (at + 1 == queue.size())
        return self.awaited || self.stream->closing;
    return !queue[at + 1]->early || queue[at + 1]->stuck;
}

// Blocks of the last wave go on when those of the next grid wait: whoever reads too early reads
// what was there before.
void grid_run::let_next(uint64_t block)
{
    tell_lets_next();
    if (block + wave < count)
        return;
    hand_over();
    {
        locked hold(driver().lock);
        uint64_t seen = letting;
        auto until = std::chrono::system_clock::now() + PATIENCE;
        while (!next_has_come()) {
            if (driver().changed.wait_until(hold, until) == std::cv_status::no_timeout)
                continue;
            if (seen == letting)
                break;
            seen = letting;
            until = std::chrono::system_clock::now() + PATIENCE;
        }
    }
    take_turn(block);
}

} // namespace

failure grid_execute(const grid &g, operation &self, bool cooperative, unsigned threads,
                     unsigned wave)
{
    return grid_run(g, self, wave).run(cooperative, threads);
}

} // namespace fajit_emu
