/* Standard input, output and error of a program whose caller may have closed some. */
#ifndef TDM_COMMON_STANDARD_FDS_H
#define TDM_COMMON_STANDARD_FDS_H

/* First in main(): puts /dev/null in the place of those that are closed, for reading alone. Then no socket or file that
 * is opened later takes messages that were meant for standard error, and writing fails as with a closed descriptor. */
void tdm_standard_fds_open(void);

#endif
