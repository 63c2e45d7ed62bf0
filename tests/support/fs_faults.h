/* System calls of the writers that fail at the n-th call, for tests that publish something (base/fs.h, "faults").
 *
 *     fs_faults_begin(0); must(publish()); const int n = fs_faults_end();          // how many calls there are
 *     for (int at = 1; at <= n; at++) { fs_faults_begin(at); … must fail …; fs_faults_end(); … nothing is there … } */
#ifndef AG_TEST_FS_FAULTS_H
#define AG_TEST_FS_FAULTS_H

/* The at-th call fails with EIO; 0: none does. */
void fs_faults_begin(int at);
/* At the at-th call the process ends, as by a kill: _exit(FS_FAULTS_DEATH) without that call. For a forked child. */
enum { FS_FAULTS_DEATH = 77 };
void fs_faults_begin_deadly(int at);
/* Back to the system; the calls that were made. */
int fs_faults_end(void);

#endif
