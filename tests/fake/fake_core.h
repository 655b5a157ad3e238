/* What both look-alikes share: books about calls, armed failures, latencies, misuse. */
#ifndef FAKE_CORE_H
#define FAKE_CORE_H

#include <pthread.h>

#include "fake.h"

#define FAKE_EXPORT __attribute__((visibility("default")))

extern const char *const fake_names[]; /* defined by each look-alike; NULL-terminated */
extern pthread_mutex_t fake_mutex;     /* guards the look-alike's objects */

/* Counts a call and waits its latency. Returns the code that it is to fail with, or 0. */
int fake_enter(const char *function);
void fake_leave(const char *function);

void fake_violate(const char *format, ...) __attribute__((format(printf, 1, 2)));
void fake_count(const char *kind, int change);

const fake_control *fake_control_get(void); /* defined by each look-alike */
void fake_core_control(fake_control *control);
int fake_version(void); /* as set, else 0 */

#endif
