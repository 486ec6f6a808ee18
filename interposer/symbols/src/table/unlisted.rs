//! What drivers export, or libcudart asks for, though no header of CUDA lists it. Their versions are not known.
//!
//! Not here: the debugger's `cudbg...`, which are variables and entry points for `cuda-gdb` and no part of
//! the driver API, and the functions in the tables of `cuGetExportTable`, which have no names.

super::symbols! {
    passed "sets up EGL, by EGL itself" {
        cuEGLApiInit 0;
    }
    unsupported "in no header; it may describe memory that we made differently as it is" {
        cuMemGetAttribute 0, 0 _v2;
    }
    unsupported "in no header; libcudart 13.5 looks for it, and no function of the runtime that is documented uses it" {
        cuSubgridCreate 0;
        cuSubgridWorkerGridCreate 0;
        cuSubgridWorksetCreate 0;
    }
}
