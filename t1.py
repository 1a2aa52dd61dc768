import torch,time,os,sys
from redraft.kernels.cpu.library import library
from redraft.kernels.moe import routed_experts, routed_experts_reference
torch.manual_seed(0)
L=library(); print(L and L.level.name)
for dt in (torch.float32, torch.bfloat16):
  for (n,E,K,C,F) in [(32,64,8,1024,256),(1,4,2,32,16),(7,5,3,50,21),(300,3,2,100,37),(40,2,1,17,130)]:
    gu=torch.randn(E,2*F,C)*C**-.5; d=torch.randn(E,C,F)*F**-.5; x=torch.randn(n,C)
    gu,d,x=gu.to(dt),d.to(dt),x.to(dt)
    ids=torch.stack([torch.randperm(E)[:K] for _ in range(n)]); w=torch.rand(n,K)
    o=L.routed_experts(x,ids,w,gu,d)
    r=routed_experts_reference(x.double(),ids,w.double(),gu.double(),d.double())
    one=torch.cat([L.routed_experts(x[i:i+1],ids[i:i+1],w[i:i+1],gu,d) for i in range(0,n,max(1,n//5))])
    same=torch.equal(one,o[::max(1,n//5)])
    lin=L.linear(x,gu[0],torch.float32); lr=x.double()@gu[0].double().T
    print(dt,n,C,F,'err',((o.double()-r).norm()/r.norm()).item(),'lin',((lin-lr).norm()/lr.norm()).item(),'same',same)
