/* Being told that the process is about to exit before any library's exit handlers run. */
#ifndef FA_EXIT_H
#define FA_EXIT_H

/* Lets `call` run when the main thread ends: by exit, before every exit handler, or (rarely) by
 * pthread_exit while other threads go on. Does nothing on other threads and after the first time.
 */
void fa__exit_watch(void (*call)(void));

#endif
