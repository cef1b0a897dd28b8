/* The step walk; steps.def is the table. */
#ifndef KILN_REQUEST_STEPS_H
#define KILN_REQUEST_STEPS_H

struct request;

enum step_result { STEP_NEXT, STEP_TAKEN, STEP_WAIT };

#define STEP(function, decides) enum step_result function(struct request *req);
#include "request/steps.def"
#undef STEP

/* Runs the steps from req->step on. */
void request_steps_resume(struct request *req);
const char *step_name(unsigned step);

#endif
