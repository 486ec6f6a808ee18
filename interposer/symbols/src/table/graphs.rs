//! Graphs, apart from their launch.

super::symbols! {
    wrapped Addresses {
        cuGraphAddBatchMemOpNode 11070;
        cuGraphAddChildGraphNode 10000;
        cuGraphAddMemcpyNode 10000;
        cuGraphAddMemsetNode 10000;
        cuGraphBatchMemOpNodeSetParams 11070;
        cuGraphExecBatchMemOpNodeSetParams 11070;
        cuGraphExecChildGraphNodeSetParams 11010;
        cuGraphExecMemcpyNodeSetParams 10020;
        cuGraphExecMemsetNodeSetParams 10020;
        cuGraphExecNodeSetParams 12020;
        cuGraphExecUpdate 10020, 12000 _v2;
        cuGraphKernelNodeSetAttribute 11000;
        cuGraphMemcpyNodeSetParams 10000;
        cuGraphMemsetNodeSetParams 10000;
        cuGraphNodeSetParams 12020, 13040 _v2;
    }
    passed "builds, changes or asks about a graph, and names no memory; nothing is executed before its launch" {
        cuGraphAddDependencies 10000, 12030 _v2;
        cuGraphAddEmptyNode 10000;
        cuGraphAddEventRecordNode 11010;
        cuGraphAddEventWaitNode 11010;
        cuGraphAddExternalSemaphoresSignalNode 11020;
        cuGraphAddExternalSemaphoresWaitNode 11020;
        cuGraphAddHostNode 10000;
        cuGraphAddKernelNode 10000, 12000 _v2;
        cuGraphAddMemFreeNode 11040;
        cuGraphBatchMemOpNodeGetParams 11070;
        cuGraphChildGraphNodeGetGraph 10000;
        cuGraphClone 10000;
        cuGraphConditionalHandleCreate 12030;
        cuGraphCreate 10000;
        cuGraphDebugDotPrint 11030;
        cuGraphDestroy 10000;
        cuGraphDestroyNode 10000;
        cuGraphEventRecordNodeGetEvent 11010;
        cuGraphEventRecordNodeSetEvent 11010;
        cuGraphEventWaitNodeGetEvent 11010;
        cuGraphEventWaitNodeSetEvent 11010;
        cuGraphExecEventRecordNodeSetEvent 11010;
        cuGraphExecEventWaitNodeSetEvent 11010;
        cuGraphExecExternalSemaphoresSignalNodeSetParams 11020;
        cuGraphExecExternalSemaphoresWaitNodeSetParams 11020;
        cuGraphExecGetFlags 12000;
        cuGraphExecGetId 13010;
        cuGraphExecHostNodeSetParams 10020;
        cuGraphExecKernelNodeSetParams 10010, 12000 _v2;
        cuGraphExternalSemaphoresSignalNodeGetParams 11020;
        cuGraphExternalSemaphoresSignalNodeSetParams 11020;
        cuGraphExternalSemaphoresWaitNodeGetParams 11020;
        cuGraphExternalSemaphoresWaitNodeSetParams 11020;
        cuGraphGetEdges 10000, 12030 _v2;
        cuGraphGetId 13010;
        cuGraphGetNodes 10000;
        cuGraphGetRootNodes 10000;
        cuGraphHostNodeGetParams 10000;
        cuGraphHostNodeSetParams 10000;
        cuGraphKernelNodeCopyAttributes 11000;
        cuGraphKernelNodeGetAttribute 11000;
        cuGraphKernelNodeGetParams 10000, 12000 _v2;
        cuGraphKernelNodeSetParams 10000, 12000 _v2;
        cuGraphMemAllocNodeGetParams 11040;
        cuGraphMemFreeNodeGetParams 11040;
        cuGraphMemcpyNodeGetParams 10000;
        cuGraphMemsetNodeGetParams 10000;
        cuGraphNodeFindInClone 10000;
        cuGraphNodeGetContainingGraph 13010;
        cuGraphNodeGetDependencies 10000, 12030 _v2;
        cuGraphNodeGetDependentNodes 10000, 12030 _v2;
        cuGraphNodeGetEnabled 11060;
        cuGraphNodeGetLocalId 13010;
        cuGraphNodeGetParams 13020;
        cuGraphNodeGetToolsId 13010;
        cuGraphNodeGetType 10000;
        cuGraphNodeSetEnabled 11060;
        cuGraphReleaseUserObject 11030;
        cuGraphRemoveDependencies 10000, 12030 _v2;
        cuGraphRetainUserObject 11030;
        cuUserObjectCreate 11030;
        cuUserObjectRelease 11030;
        cuUserObjectRetain 11030;
    }
}
