/* How many compiles run at once in the process, and that none runs while the process exits. */
#ifndef FA_COMPILE_SLOTS_H
#define FA_COMPILE_SLOTS_H

#include "fajit.h"

/* Waits until fewer than `limit` compiles run. FA_ERR_FORKED in the child of a process that was
 * compiling: NVRTC's own locks may never be released there. */
fa_status fa__slot_enter(uint32_t limit);
void fa__slot_leave(void);
/* When the main thread ends: waits for the compiles that run. Exit handlers may be about to take
 * away what they use; the next compile begins only when that has not happened within a moment. */
void fa__slot_pause(void);
/* At exit: no more compiles begin, and those that run are waited for. */
void fa__slot_close(void);

#endif
