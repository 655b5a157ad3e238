// What ThreadSanitizer is told of a running block, if the process has it. Every emulated thread is
// one of its threads, and the emulator itself is another, whose reads and writes are not looked at.
// Nothing orders the threads but the operations that do so on a device.
#ifndef FAJIT_EMU_WATCH_H
#define FAJIT_EMU_WATCH_H

#include "block_state.h"

namespace fajit_emu {

// Whoever acts from here on.
void become(block *b, void *identity);
void *running_identity(block *b);

// The emulator at work, between two stretches of a thread.
class pause {
  public:
    explicit pause(block *b) : b(b)
    {
        become(b, b->identity);
    }
    ~pause();
    pause(const pause &) = delete;
    pause &operator=(const pause &) = delete;

    // The thread has come to a meeting that orders: what it did is seen by all who leave it.
    void arrive_at(const meeting &m);
    void leave(const meeting &m);
    // The thread sees all that this operating-system thread has seen.
    void catch_up();

  private:
    block *b;
};

// Gives every thread its fiber, so that all are made by the emulator. False: no memory.
bool begin_watch(block *b);
// All that they did is seen by whoever waits for the grid.
void end_watch(block *b);

} // namespace fajit_emu

#endif
