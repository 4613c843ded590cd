-- New sites, and paths for sites from outside of them.

-- A site that is known was given as a seed: it is crawled under its own name, whatever it has in common with others.
local function seed(site, record, report)
  if record.linked then
    record.linked = false
    write(site, record)
    tell(report)
  end
  if record.state == 'a' then
    open_alias(site, record)
  end
end

-- A finished site, or an alias, is walked from its beginning.
local function begin_again(site, record, paths, time)
  call('UNLINK', base .. 'checkpoint:' .. site)
  clear_suspicion(site)
  part_namesakes(site, time)
  alter(site, record, function(r)
    r.state = 'w'
    undo(r)
  end)
  tell_opened(site, record.progress, 'pending')
  call('RPUSH', base .. 'fresh', site)
  give_first(site, record, paths)
end

-- most sites (0: no limit), again ('1': finished ones are walked again), then per site: name, record (JSON) or '',
-- paths (an entry) or '' for the root -> per site 1 new, 0 known, 2 walked again, -1 refused by the limit, -2 blocked:
-- nothing of it is loaded.
function operations.discover(most, walk_again)
  local answer = {}
  local known = tonumber(call('HGET', count, 'added') or 0)
  local time = now()
  most = tonumber(most)
  for i = 4, #ARGV, 3 do
    local site, record, paths = ARGV[i], ARGV[i + 1], ARGV[i + 2]
    local old = read(site)
    local verdict = 0
    if not old then
      verdict = (most > 0 and known >= most) and -1 or 1
      if verdict == 1 then
        known = known + 1
        begin(site, paths)
        enrol(site, time)
        tell(record)
      end
    elseif (old.state == 'f' or old.state == 'a') and walk_again == '1' then
      verdict = 2
      seed(site, old, record)
      begin_again(site, old, paths, time)
    else
      seed(site, old, record)
      if receive(site, old, paths, 0) == -2 then verdict = -2 end
    end
    answer[#answer + 1] = verdict
  end
  return answer
end

-- most sites (0: no limit), agent or '', the number of its last call of this that was answered (0: none), then per
-- entry: site, record (JSON) of a site that is new or '' (such a site is left out), '1' if a new one begins with its
-- root too, '1' if a seed led there, so that the site counts as given, paths
-- -> per entry 1 new, 0 known, -1 refused by the limit, -2 nothing of the site is loaded, -3 too many wait; then this
-- call's number. Error OLDER where the last call is not known.
function operations.offer(most, agent, offers)
  if is_older(agent, offers) then return older(agent) end
  local answer = {}
  local known = tonumber(call('HGET', count, 'added') or 0)
  local time = now()
  most = tonumber(most)
  for i = 5, #ARGV, 5 do
    local site, record, root, seeded, paths = unpack(ARGV, i, i + 4)
    local old = read(site)
    if old then
      if seeded == '1' then seed(site, old, record) end
      answer[#answer + 1] = receive(site, old, paths, MOST_OFFERED)
    elseif record == '' then
      answer[#answer + 1] = -2
    elseif most > 0 and known >= most then
      answer[#answer + 1] = -1
    else
      known = known + 1
      begin(site, paths, seeded ~= '1')
      local lacks_root = root == '1' and call('SREM', base .. 'rootless', site) == 1
      if lacks_root then call('LPUSH', base .. 'paths:' .. site, '/') end
      enrol(site, time)
      tell(record)
      answer[#answer + 1] = 1
    end
  end
  if has_session(agent) then offers = call('HINCRBY', base .. 'agent:' .. agent, 'offers', 1) end
  answer[#answer + 1] = tonumber(offers)
  return answer
end
