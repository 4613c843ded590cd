-- Records of sites, sessions, slots of hosts and addresses, due times, paths from outside of a site.

local base = string.sub(KEYS[1], 1, -6)
local count = KEYS[1]
local call = redis.call

-- A work that falls due for a paused site is asked for again after this time.
local PAUSED_MS = 60000
-- The due time of a site that is just being packed: in the year 2096.
local HELD_UP_MS = 4e12
-- A site of which nothing is packed yet is looked at again after this time.
local UNPACKED_MS = 500
-- And one whose address had no place for a work beside loading, after this.
local CROWDED_MS = 5000
-- A site that was looked at for such a work while its address was full, after this: many may share one.
local FULL_MS = 1000
-- An agent that misses sites asks again within a part of this; an older note is of one that has stopped asking.
local HUNGRY_MS = 2000
-- Entries of links that may wait for one site. What is refused is reported to the agent that offered it.
local MOST_OFFERED = 10000
-- With more of them one is joined with one of the last, if both have no more characters: many flushes name a site that
-- many link to, each but a few paths. More than a coordinator reads at a time, so that the last are none of those.
local JOINED_BEYOND = 1000
local JOINED_LAST = 8
local ENTRY_CHARACTERS = 4096
-- How long a site waits at most to be compared with the one that it may be an alias of. Where no coordinator is alive,
-- one may be starting.
local COMPARED_MS = 30000
-- Suspected sites that one lease's end has looked at.
local MOST_NAMESAKES = 1000

local names = { w = 'waiting', s = 'suspended', l = 'later', f = 'finished', a = 'alias', b = 'blocked' }

local function now()
  local t = call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end

local function bucket(site)
  return base .. 'sites:' .. string.sub(redis.sha1hex(site), 1, 4)
end

-- A site takes two places: its host's, so that one host is never met under two schemes or ports, and its address's.
-- The slashes keep a host that is an address apart from that address.
local function host_of(site)
  return '//' .. (string.match(site, '^%a+://(%[[^%]]*%])') or string.match(site, '^%a+://([^:/]+)') or site)
end

-- A site's record; nil where there is none, and true behind it where somebody else wrote what is none. The script's
-- names are ASCII, and no reply of it may hold another.
local function record_of(site)
  local text = call('HGET', bucket(site), site)
  if not text then return nil end
  local letter, address, linked, rest = string.match(text, '^(%a) ([!-)+-~]+)(%*?) ?(.*)$')
  local state = letter and string.lower(letter)
  if not names[state] or string.find(site, '[^ -~]') then return nil, true end
  local progress, behind, token, agent, work
  if rest ~= '' then
    progress, behind = string.match(rest, '^(%d+/%d+/?%x*/?[%l%d,]*) ?(.*)$')
    behind = behind or rest
    if behind ~= '' then
      token, agent, work = string.match(behind, '^([!-~]+) ([!-~]+) ([!-~]+)$')
      if not token then return nil, true end
    end
  end
  return {
    state = state,
    paused = letter ~= state,
    address = address,
    linked = linked == '*',
    progress = progress,
    token = token,
    agent = agent,
    work = work,
  }
end

local function no_record(site)
  return redis.error_reply('BROKEN ' .. bucket(site) .. ' ' .. site)
end

-- As `record_of`, but what is no record ends the operation by the error BROKEN, with the key and the site.
local function read(site)
  local record, broken = record_of(site)
  if broken then error(no_record(site)) end
  return record
end

local function write(site, record)
  local letter = record.paused and string.upper(record.state) or record.state
  local text = letter .. ' ' .. record.address .. (record.linked and '*' or '')
  if record.progress then text = text .. ' ' .. record.progress end
  if record.agent then
    text = text .. ' ' .. record.token .. ' ' .. record.agent .. ' ' .. record.work
  end
  call('HSET', bucket(site), site, text)
end

-- A record (JSON, or '') into the results stream.
local function tell(report)
  if report ~= '' then call('XADD', base .. 'results', '*', 'v', '1', 'r', report) end
end

-- Tells the tables that a finished site, or an alias, is gone on with, so that a lost queue is known to have held it.
-- Its progress is that from which it goes on; `rest`: what the URLs are that are known and not done: pending or
-- over_budget.
local function tell_opened(site, progress, rest)
  local done, known = string.match(progress or '0/0', '^(%d+)/(%d+)')
  local opened = { kind = 'opened', site = site, published = tonumber(done), known = tonumber(known) }
  opened.opened_at = now()
  opened[rest] = math.max(known - done, 0)
  tell(cjson.encode(opened))
end

local function note_owed(site, owed)
  if owed and owed ~= '' then call('HSET', base .. 'owed', site, owed) end
end

local function add(field, by)
  call('HINCRBY', count, field, by)
end

-- Every site is counted once: held for loading as leased, else as paused, else by its state.
local function class_of(record)
  if record.agent and record.work == 'site' then return 'leased' end
  if record.paused then return 'paused' end
  return names[record.state]
end

-- Changes a record by `change` and keeps the counts right.
local function alter(site, record, change)
  local before = class_of(record)
  change(record)
  local after = class_of(record)
  if before ~= after then
    add(before, -1)
    add(after, 1)
    if before == 'suspended' then call('SREM', base .. 'suspended', site) end
    if after == 'suspended' then call('SADD', base .. 'suspended', site) end
  end
  write(site, record)
end

local function again(work)
  return base .. 'again:' .. work
end

local function eligible(record, work)
  if not record or record.agent or record.paused or record.state == 'b' or record.state == 'a' then return false end
  return work ~= 'site' or record.state == 'w' or record.state == 's'
end

-- One site that waits for this place gets its turn; lease looks again whether there is room. Who has no use for the
-- turn any more is passed over here, where the place is known: in lease the turn would be lost.
local function unpark(place)
  for _ = 1, 1000 do
    local site = call('LPOP', base .. 'park:' .. place)
    if not site then return end
    call('SREM', base .. 'parked', site)
    local record, broken = record_of(site)
    if broken or (eligible(record, 'site') and (record.address == place or host_of(site) == place)) then
      call('LPUSH', again('site'), site)
      return
    end
    if record and record.agent and record.work ~= 'site' then call('RPUSH', again('site'), site) end
  end
end

local function occupy(place)
  call('HINCRBY', base .. 'busy', place, 1)
end

local function vacate(place)
  if call('HINCRBY', base .. 'busy', place, -1) <= 0 then call('HDEL', base .. 'busy', place) end
  unpark(place)
end

local function busy(place)
  return tonumber(call('HGET', base .. 'busy', place) or 0)
end

-- Whether an address takes one more site. Many sites that had to wait for it make it a shared front end.
local function has_room(address, limit, crowd, crowd_limit)
  local taken = busy(address)
  if taken < limit then return true end
  return taken < crowd_limit and tonumber(call('HGET', base .. 'crowd', address) or 0) >= crowd
end

-- Takes a place on an address that has room; where there is still some, the next that waits gets a turn as well.
local function settle(address, limit, crowd, crowd_limit)
  occupy(address)
  if has_room(address, limit, crowd, crowd_limit) then unpark(address) end
end

-- `crowd` keeps how many waited at the same time: a few sites that wait often are no shared front end. Nor does one
-- that is named again while it waits count again, or wait twice.
local function park(site, place)
  if call('SADD', base .. 'parked', site) == 0 then return end
  local waiting = call('RPUSH', base .. 'park:' .. place, site)
  if waiting > tonumber(call('HGET', base .. 'crowd', place) or 0) then
    call('HSET', base .. 'crowd', place, waiting)
  end
end

local function is_unfinished(record)
  return record ~= nil and (record.state == 'w' or record.state == 's' or record.state == 'l')
end

-- The state of a site that is to be gone on with.
local function unfinished(site)
  return call('EXISTS', base .. 'checkpoint:' .. site) == 1 and 's' or 'w'
end

-- A work that is due for a site which another one has in hand is woken when that one leaves, and at `soon` in any case.
local function wait_behind(site, work, soon)
  call('ZADD', base .. 'wake:' .. work, 'GT', soon, site)
  local others = string.gsub(call('HGET', base .. 'behind', site) or '', work .. ' %d+ ?', '')
  call('HSET', base .. 'behind', site, others .. work .. ' ' .. soon .. ' ')
end

-- Who was given another time meanwhile keeps that.
local function wake_those_behind(site)
  local waiting = call('HGET', base .. 'behind', site)
  if not waiting then return end
  call('HDEL', base .. 'behind', site)
  for work, soon in string.gmatch(waiting, '(%S+) (%d+)') do
    local key = base .. 'wake:' .. work
    if tonumber(call('ZSCORE', key, site) or 0) == tonumber(soon) then call('ZADD', key, now(), site) end
  end
end

-- Ends a lease in places and lists; the caller alters the record. What was packed for its work is used up.
local function vacate_all(site, record)
  wake_those_behind(site)
  if record.work ~= 'site' then call('HDEL', base .. 'visit:' .. site, record.work) end
  vacate(host_of(site))
  if record.address ~= '-' then vacate(record.address) end
  call('HDEL', base .. 'held:' .. record.agent, site)
  call('SREM', base .. 'stop:' .. record.agent, site)
  call('SREM', base .. 'suspend:' .. record.agent, site)
  call('SREM', base .. 'given:' .. record.agent, site)
  if record.state == 'b' then call('UNLINK', base .. 'checkpoint:' .. site, base .. 'paths:' .. site) end
end

local function let_go(record)
  record.agent = nil
end

-- A site that has to be walked from its beginning: of what is known of it nothing is done.
local function undo(record)
  if record.progress then record.progress = '0/' .. string.match(record.progress, '/(%d+)') .. '/0' end
end

-- A held site's token, last delivery, pause between requests (ms), time before which it must not be asked (ms), and its
-- progress by that delivery.
local function holding(agent, site)
  local text = call('HGET', base .. 'held:' .. agent, site) or ''
  return string.match(text, '^(%S+) (%S+) (%S+) (%S+) (%d+/%d+/?%x*/?[%l%d,]*)$')
end

-- A dead agent's site goes back to the front, since somebody was in the middle of it; but when that one asked it last
-- is not known, so its pause begins now.
local function hand_back(site, record, time)
  local work = record.work
  local _, _, delay, rests_until, progress = holding(record.agent, site)
  local due = math.max(time + (delay or 0), tonumber(rests_until or 0))
  vacate_all(site, record)
  alter(site, record, function(r)
    let_go(r)
    if work == 'site' and progress and string.match(progress, '/(%d+)') ~= '0' then r.progress = progress end
    if work == 'site' and is_unfinished(r) then r.state = unfinished(site) end
  end)
  if due > time and record.state ~= 'b' then call('ZADD', base .. 'wake:site', due, site) end
  if work ~= 'site' then
    call('ZADD', base .. 'wake:' .. work, due, site)
  elseif due <= time and not record.paused and (record.state == 'w' or record.state == 's') then
    call('RPUSH', again('site'), site)
  end
end

-- A site leaves the hand of an agent that is gone. Of one whose record cannot be read the name goes to the front:
-- whoever leases next is to meet it, and not who only clears up.
local function take_from(agent, site, time)
  local record, broken = record_of(site)
  if record and record.agent == agent then
    hand_back(site, record, time)
    return
  end
  call('HDEL', base .. 'held:' .. agent, site)
  if broken then call('RPUSH', again('site'), site) end
end

-- After a silence of half a lease nobody is swept: every session gets one more lease time first. One that is being
-- swept is beyond help: half of its sites may be others' already.
local function forgive_silence(time, lease_ms)
  local last = tonumber(call('GET', base .. 'renewed') or time)
  if time - last > lease_ms / 2 then
    for _, agent in ipairs(call('ZRANGEBYSCORE', base .. 'agents', '(0', '+inf', 'LIMIT', 0, 10000)) do
      call('ZADD', base .. 'agents', time + lease_ms, agent)
    end
    call('SET', base .. 'renewed', time)
  end
end

local function has_session(agent)
  return tonumber(call('ZSCORE', base .. 'agents', agent) or 0) > 0
end

-- Whether the server lacks the last call of `offer` that it answered to this agent (its number): then it has come back
-- as of an earlier time, and whatever the agent said since is lost. The agent drops what it has, for it to be fetched
-- again.
local function is_older(agent, offers)
  if not has_session(agent) then return false end
  return tonumber(call('HGET', base .. 'agent:' .. agent, 'offers') or 0) < tonumber(offers)
end

local function older(agent)
  return redis.error_reply('OLDER ' .. agent)
end

local function sessions()
  return call('ZCOUNT', base .. 'agents', '(0', '+inf')
end

local function gone(agent)
  return redis.error_reply('GONE ' .. agent)
end

-- Takes up to 100 sites from one dead agent, if there is one; its session goes when none is left.
local function sweep(time, lease_ms)
  forgive_silence(time, lease_ms)
  local dead = call('ZRANGEBYSCORE', base .. 'agents', 0, time, 'LIMIT', 0, 1)[1]
  if not dead then return end
  call('ZADD', base .. 'agents', 0, dead)
  call('HDEL', base .. 'hungry', dead)
  for _, site in ipairs(call('HRANDFIELD', base .. 'held:' .. dead, 100)) do
    take_from(dead, site, time)
  end
  if call('HLEN', base .. 'held:' .. dead) == 0 then
    call('ZREM', base .. 'agents', dead)
    for _, kind in ipairs({ 'agent:', 'stop:', 'suspend:', 'given:' }) do call('UNLINK', base .. kind .. dead) end
  end
end

local function wake(work, time)
  local key = base .. 'wake:' .. work
  for _, site in ipairs(call('ZRANGEBYSCORE', key, 0, time, 'LIMIT', 0, 100)) do
    call('ZREM', key, site)
    call('RPUSH', again(work), site)
    if work == 'site' then
      local record = record_of(site)
      if record and record.state == 'l' then
        call('HDEL', base .. 'why', site)
        alter(site, record, function(r) r.state = unfinished(site) end)
      end
    end
  end
end

-- The next name to look at, and whether it stands there for a probe.
local function pop(work, hour)
  local site = call('LPOP', again(work))
  if site or work ~= 'site' then return site end
  site = call('LPOP', base .. 'probe:' .. hour)
  if site then return site, true end
  return call('LPOP', base .. 'hour:' .. hour) or call('LPOP', base .. 'fresh')
end

-- Notes how many sites an agent asked for in vain; how many the others miss just now.
local function note_hunger(agent, missing, time)
  if missing > 0 then
    call('HSET', base .. 'hungry', agent, time .. ' ' .. missing)
  else
    call('HDEL', base .. 'hungry', agent)
  end
  local others = 0
  local notes = call('HGETALL', base .. 'hungry')
  for i = 1, #notes, 2 do
    local at, many = string.match(notes[i + 1], '^(%d+) (%d+)$')
    if notes[i] ~= agent and time - at <= HUNGRY_MS then others = others + many end
  end
  return others
end

local function is_root(paths)
  return paths == '/' or string.find(paths, '^%d+ %d+\n/$') ~= nil
end

local function names_root(paths)
  return string.find('\n' .. paths .. '\n', '\n/\n', 1, true) ~= nil
end

-- How the paths of an entry were found.
local function way_of(entry)
  return string.match(entry, '^%d+ %d+\n') or ''
end

-- Joins an entry with one of the last of a long list; false: it is one more. Not where an agent has read these already.
local function join(key, paths)
  if call('LLEN', key) < JOINED_BEYOND then return false end
  local way = way_of(paths)
  for place = -1, -JOINED_LAST, -1 do
    local entry = call('LINDEX', key, place)
    if #entry + #paths < ENTRY_CHARACTERS and way_of(entry) == way then
      call('LSET', key, place, entry .. '\n' .. string.sub(paths, #way + 1))
      return true
    end
  end
  return false
end

-- An entry for a site that is not finished. Without a list a site begins with its root, so the first list must name it
-- as well, unless a checkpoint has it or the site begins only now (`begins`). Its holder hears of it with its next
-- renewal.
local function give(site, record, paths, begins)
  local key = base .. 'paths:' .. site
  local is_read = record.agent and record.work == 'site'
  if is_read then call('SADD', base .. 'given:' .. record.agent, site) end
  if not is_read and join(key, paths) then return end
  if call('RPUSHX', key, paths) > 0 then return end
  if not begins and not names_root(paths) and call('EXISTS', base .. 'checkpoint:' .. site) == 0 then
    call('RPUSH', key, '/')
  end
  call('RPUSH', key, paths)
end

-- What a walk begins with; without paths that is the root.
local function give_first(site, record, paths)
  if paths == '' then return end
  if not names_root(paths) then call('SADD', base .. 'rootless', site) end
  give(site, record, paths, true)
end

local function begin(site, paths, linked)
  write(site, { state = 'w', address = '-', linked = linked })
  call('RPUSH', base .. 'fresh', site)
  add('waiting', 1)
  add('added', 1)
  give_first(site, {}, paths)
end

-- A coordinator decides of this site once all is stored that was published before now.
local function await_decision(site)
  call('ZADD', base .. 'undecided', 'GT', now(), site)
end

-- Pages of the site are to be loaded again, once it is finished.
local function note_reopening(site, record)
  call('HINCRBY', base .. 'reopen', site, 1)
  if record and record.state == 'f' then await_decision(site) end
end

-- An alias's paths are its original's; it keeps them, for it may be opened again. The site that they go to, and its
-- record.
local function pass_on(site, record, paths, most)
  local first = call('HGET', base .. 'why', site)
  if most == 0 or call('LLEN', base .. 'paths:' .. site) < most then give(site, record, paths, false) end
  return first, first and read(first)
end

-- An entry for a site that is known, whatever its state: 0 taken (or it has its root already), -2 it is blocked, or
-- stands for no site that is known (as long as that is so nothing of it is loaded), -3 too many wait (only where `most`
-- > 0).
local function receive(site, record, paths, most)
  if paths == '' then paths = '/' end
  if record.state == 'a' and is_root(paths) then return 0 end
  if record.state == 'a' then site, record = pass_on(site, record, paths, most) end
  if not record or record.state == 'b' or record.state == 'a' then return -2 end
  local gives_root = names_root(paths) and call('SISMEMBER', base .. 'rootless', site) == 1
  if not gives_root and is_root(paths) then return 0 end
  local list = base .. (record.state == 'f' and 'offered:' or 'paths:') .. site
  if most > 0 and call('LLEN', list) >= most then return -3 end
  if gives_root then call('SREM', base .. 'rootless', site) end
  if record.state == 'f' then
    if not join(list, paths) then call('RPUSH', list, paths) end
    call('ZADD', base .. 'undecided', 'NX', now(), site)
  else
    give(site, record, paths, false)
  end
  return 0
end

-- The first entries of those that were offered to a site go to its frontier; `taken` of them.
local function hand_over(site, record, taken)
  for _ = 1, taken do
    local paths = call('LPOP', base .. 'offered:' .. site)
    if not paths then break end
    give(site, record, paths, false)
  end
end

-- Nothing of the site is loaded under its name; what was offered to an alias while it was crawled is its original's.
local function clear_offered(site, record)
  local key = base .. 'offered:' .. site
  for _, paths in ipairs(record and record.state == 'a' and call('LRANGE', key, 0, -1) or {}) do
    receive(site, record, paths, 0)
  end
  call('UNLINK', key)
end

local function note_decided(site, record)
  local offered = call('EXISTS', base .. 'offered:' .. site) == 1
  local noted = record and record.state == 'f' and call('HEXISTS', base .. 'reopen', site) == 1
  if not (offered or noted) then call('ZREM', base .. 'undecided', site) end
end

local function stale(site)
  return redis.error_reply('STALE ' .. site)
end

-- The record of a site that this agent holds under this token; nil if it does not.
local function own(site, token, agent)
  local record = read(site)
  if record and record.token == token and record.agent == agent then return record end
end

-- A site that is new, or nobody's no more, falls due for what is done with every site (SiteQueue.monitor).
local function enrol(site, time)
  if call('HEXISTS', count, 'every:status') == 1 then call('ZADD', base .. 'wake:status', 'NX', time, site) end
end
