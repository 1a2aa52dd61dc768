import torch,time,sys
from redraft.kernels.cpu.library import library
from redraft.kernels.moe import routed_experts
from redraft.kernels.grouped import grouped_linear
torch.set_num_threads(1); torch.manual_seed(0)
lib=library(); print(lib.level.name)
rows=int(sys.argv[1]); E,K,C,F,L=64,8,1024,256,int(sys.argv[2])
def cpu(): return time.thread_time()
for dt in (torch.bfloat16, torch.float32):
    gu=[(torch.randn(E,2*F,C)*.03).to(dt) for _ in range(L)]; dn=[(torch.randn(E,C,F)*.03).to(dt) for _ in range(L)]
    x=torch.randn(rows,C).to(dt); ids=torch.stack([torch.randperm(E)[:K] for _ in range(rows)]); w=torch.rand(rows,K)
    flat=torch.cat([g.flatten() for g in gu]); 
    def bw(): return [ (g.view(torch.int32).sum(dtype=torch.int64), d.view(torch.int32).sum(dtype=torch.int64)) for g,d in zip(gu,dn)]
    res={}
    def one(name,f):
        c=cpu(); t=time.perf_counter(); f(); res.setdefault(name,[]).append(((cpu()-c)/L*1e3,(time.perf_counter()-t)/L*1e3))
    for it in range(int(sys.argv[3])):
        one('ours',lambda:[lib.routed_experts(x,ids,w,gu[l],dn[l]) for l in range(L)])
        one('torch',lambda:[routed_experts(x,ids,w,gu[l],dn[l]) for l in range(L)])
    a=torch.randn(rows,C).to(dt); W=(torch.randn(8192,C)).to(dt)
    for it in range(int(sys.argv[3])):
        one('lin',lambda:lib.linear(a,W)); one('lint',lambda:torch.nn.functional.linear(a,W))
    for k,v in res.items(): print(dt,rows,k,'cpu min %.2f med %.2f wall min %.2f'%(min(v)[0],sorted(v)[len(v)//2][0],min(b for a,b in v)))
