/* Where the worker programs lie when they do not lie beside tandemd. */
#ifndef TDM_DAEMON_SERVICE_WORKER_DIR_H
#define TDM_DAEMON_SERVICE_WORKER_DIR_H

/* The caller's to free. NULL: beside this executable, as in a build tree (or nowhere). */
char *tdm_installed_worker_dir(void);

#endif
