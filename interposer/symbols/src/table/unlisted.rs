//! Functions that drivers export or libcudart looks up, although no header of CUDA lists them. Their versions
//! are unknown.
//!
//! Two kinds are left out: `cudbg...`, which are variables and entry points for `cuda-gdb`, and the functions
//! in the tables of `cuGetExportTable`, which have no names.

super::symbols! {
    passed "sets up EGL, by EGL itself" {
        cuEGLApiInit 0;
    }
    unsupported "is in no header; it may describe managed memory as managed although the application asked for device memory" {
        cuMemGetAttribute 0, 0 _v2;
    }
    unsupported "is in no header; libcudart 13.5 looks it up, but no documented function of the runtime uses it" {
        cuSubgridCreate 0;
        cuSubgridWorkerGridCreate 0;
        cuSubgridWorksetCreate 0;
    }
}
